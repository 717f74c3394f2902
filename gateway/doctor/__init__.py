"""`refold doctor`: examines a set-up, subject by subject, and names the fix of what it finds."""
