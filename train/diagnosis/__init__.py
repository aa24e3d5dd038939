"""Find the first cause of a failed job in the exits, times, reasons, and logs of its tasks; pure, without I/O."""
