from multidict import CIMultiDict, CIMultiDictProxy

from gateway.traces.carrier import find_carried, with_carried


def test_the_headers_of_a_trace_are_found_whatever_their_case() -> None:
    pairs = [("TraceParent", "00-a"), ("tracestate", "a=1"), ("Tracestate", "b=2"), ("baggage", "x=1")]
    found = find_carried(CIMultiDictProxy(CIMultiDict(pairs)))
    assert found == {"traceparent": "00-a", "tracestate": "a=1,b=2"}
    assert find_carried(CIMultiDictProxy(CIMultiDict())) == {}


def test_another_trace_takes_the_place_of_the_one_before() -> None:
    headers = [("TraceParent", "old"), ("tracestate", "old"), ("x-key", "k")]
    assert with_carried(headers, {"traceparent": "new", "tracestate": None}) == [
        ("x-key", "k"),
        ("traceparent", "new"),
    ]
