import sqlite3

import diskcache
import pytest

from gateway.store.errors import Damaged, Locked, StoreError, Unusable, mapped_errors, translate


def sqlite_error(code: int, text: str = "text") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sqlite_error(sqlite3.SQLITE_CORRUPT), Damaged),
        (sqlite_error(sqlite3.SQLITE_NOTADB), Damaged),
        (sqlite_error(sqlite3.SQLITE_IOERR_SHORT_READ), Damaged),
        (sqlite_error(sqlite3.SQLITE_ERROR, "no such column: raw"), Damaged),
        (sqlite_error(sqlite3.SQLITE_ERROR, 'near "!": syntax error'), Damaged),
        (sqlite3.OperationalError("Could not decode to UTF-8 column 'key'"), Damaged),
        (sqlite_error(sqlite3.SQLITE_BUSY), Locked),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), Locked),
        (diskcache.Timeout(), Locked),
        (sqlite_error(sqlite3.SQLITE_FULL), Unusable),
        (sqlite_error(sqlite3.SQLITE_IOERR), Unusable),
        (sqlite_error(sqlite3.SQLITE_READONLY), Unusable),
        (sqlite_error(sqlite3.SQLITE_ERROR, "cannot start a transaction within a transaction"), Unusable),
        (OSError(28, "No space left on device"), Unusable),
    ],
)
def test_foreign_errors_are_damage_a_lock_or_a_disk_that_cannot_be_written(
    error: Exception, kind: type[StoreError]
) -> None:
    assert type(translate(error)) is kind


def test_the_first_error_of_a_chain_decides() -> None:
    with pytest.raises(Unusable, match="full"), mapped_errors():
        try:
            raise sqlite_error(sqlite3.SQLITE_FULL, "full")
        except sqlite3.Error:
            raise diskcache.Timeout from None


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), mapped_errors():
        raise KeyError("other")
