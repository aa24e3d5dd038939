"""Every default of a training job, once; options of the program and the agent on the hosts import it from here."""

FIRST_PORT = 2222
"""The first port that is tried for a task's TensorFlow server."""

# --- how tasks are stopped: seconds between SIGTERM and SIGKILL -----------------------------------------------------

GRACE_S = 10.0
"""When a job is stopped on request, or by a limit (``--grace``)."""

KILL_AFTER_FAILURE_S = 1.0
"""When another task failed: none can make progress, so more time would not help."""

KILL_AFTER_PREEMPTION_S = 20.0
"""When a host is preempted: it may be taken 30 seconds after the notice; the checkpoint must be copied by then."""

# --- how long the hosts wait for each other -------------------------------------------------------------------------

JOIN_TIMEOUT_S = 60.0
"""For all hosts to join an attempt."""

LINK_TIMEOUT_S = 10.0
"""Without a message, after which a host counts as lost (``--link-timeout``)."""

HOST_TIMEOUT_S = 60.0
"""For a lost host to come back, or to be replaced (``--host-timeout``)."""

SPOT_HOST_TIMEOUT_S = 1800.0
"""The same if the hosts are Spot VMs, which may be replaced late."""

START_TIMEOUT_S = 600.0
"""From the start of an attempt to its first training step (``--start-timeout``)."""

RENDEZVOUS_TIMEOUT_S = 60.0
"""For all processes of ``fleet agent`` to find each other (``--wait``)."""

# --- restarts -------------------------------------------------------------------------------------------------------

BACKOFF_S = 0.5
"""Before the first restart; doubled for each further one (``--backoff``)."""

LONGEST_BACKOFF_S = 60.0

# --- checkpoints ----------------------------------------------------------------------------------------------------

REPLICATION_MIB_S = 100.0
"""Bandwidth out of a host for copies of checkpoints (``--checkpoint-bandwidth``)."""

# --- the end of the hosts' lifetime ---------------------------------------------------------------------------------

LIFETIME_SAVE_S = 60.0
"""Before that end, for the last checkpoint to be copied after the tasks have ended."""

LIFETIME_WARN_S = 600.0
"""Before the tasks are ended for it, at which the user is warned."""
