"""Makes compactions, in the background or while a request waits. Does not know how requests travel."""
