from gateway.core.history.framing import make_framing


def test_a_summary_is_not_verified_and_a_digest_says_itself_how_it_was_made() -> None:
    summary, digest = make_framing("summary", None), make_framing("digest", None)
    assert "written by a model and is not verified" in summary
    assert "digest" in digest and "written by a model" not in digest
    assert make_framing("note", None) == ""


def test_the_conversation_is_named_only_where_its_originals_are_kept() -> None:
    for kind in ("summary", "digest", "note"):
        framing = make_framing(kind, "4af1c0")
        assert framing.endswith("conversation id 4af1c0.") and "\n" not in framing
        assert "originals" not in make_framing(kind, None)
