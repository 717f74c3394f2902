"""What conversations worked on: files, commands, to-dos, titles and diffs, read from what passes. Texts of
conversations, so they are kept only where originals may be.
"""
