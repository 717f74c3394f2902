from bench.redis_cost import RedisFigures, parse_calls, subtract


def test_calls_are_counted_by_command_without_those_that_no_request_causes() -> None:
    counts = {"cmdstat_get": 3, "cmdstat_config|get": 1, "cmdstat_config|set": 2, "cmdstat_info": 5}
    counts |= {"cmdstat_script|load": 2, "cmdstat_script|exists": 1}
    assert parse_calls(counts) == {"get": 3, "script": 3}


def test_the_difference_leaves_out_what_did_not_happen_in_between() -> None:
    before = RedisFigures({"get": 2, "set": 1}, reads=3, in_bytes=4, out_bytes=5, memory_bytes=6, keys=1)
    after = RedisFigures({"get": 5, "set": 1, "del": 1}, 10, 20, 30, memory_bytes=4, keys=3)
    assert subtract(after, before) == RedisFigures({"get": 3, "del": 1}, 7, 16, 25, -2, 2)
    assert subtract(after, before).operations == 4
