"""Describe a job in files on the computer of the user: a page for readers, and a capsule that repeats the job."""
