"""News of a store that one process uses."""

from gateway.store.news import NoNews


def test_nothing_is_new_where_no_other_process_writes() -> None:
    news, heard = NoNews(), list[str]()
    news.subscribe(lambda tag, text: heard.append(text))
    news.announce("tag", "text")
    assert (heard, news.generation) == ([], 0)
