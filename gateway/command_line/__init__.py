"""What is typed after `gateway`, and the commands that need no running gateway."""
