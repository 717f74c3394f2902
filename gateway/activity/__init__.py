"""What conversations did: a bounded record of numbers for each, for operators. Holds no text of one."""
