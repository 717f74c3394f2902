"""What no line of a head may hold, whoever wrote it."""

import re
from typing import Final

# RFC 9110 §5.5: with these a value could end its line, and begin another header.
CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
