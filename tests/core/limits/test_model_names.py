from gateway.core.limits.model_names import make_names


def test_names_are_tried_in_the_order_of_the_lookup_rule() -> None:
    assert list(make_names("bedrock/us.meta.llama")) == [
        "bedrock/us.meta.llama",
        "us.meta.llama",
        "meta.llama",
        "llama",
    ]


def test_a_version_number_is_not_a_vendor() -> None:
    assert list(make_names("gpt-4.1")) == ["gpt-4.1"]
