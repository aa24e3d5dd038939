"""What happens on the hosts: cluster spec, job, agent, progress, and what a script needs."""
