"""The queue of a fleet: `train --after` adds a job behind the last one."""
