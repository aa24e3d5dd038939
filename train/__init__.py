"""Code that runs on the hosts: cluster spec, job, agent, progress, and support for scripts."""
