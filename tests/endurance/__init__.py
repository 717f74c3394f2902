"""Long sessions through a real gateway in front of the toy upstream."""
