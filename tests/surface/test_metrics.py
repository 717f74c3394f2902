"""The metrics of a gateway: dashboard, alert rules and docs/metrics.md know them all, and no others."""

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.surface.written import ROOT as _ROOT
from tests.surface.written import read_facts
from tests.toy.agent import Shape, make_session
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.product import serve
from tests.toy.upstream import ToyUpstream

_DEPLOY = _ROOT / "deploy"
_ALERTS = _DEPLOY / "prometheus" / "alerts.yaml"
_SELECTOR = re.compile(r"\b(gateway_\w+)(\{[^}]*\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_GROUPING = re.compile(r"\bby \(([^)]*)\)")
# What Prometheus adds to each sample.
_TARGET = frozenset({"job", "instance"})
# Of several processes.
_WORKERS = frozenset({"gateway_workers", "gateway_workers_replaced_total"})
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Prometheus")


def _list_panels() -> Iterator[dict[str, Any]]:
    yield from json.loads((_DEPLOY / "grafana" / "gateway.json").read_text("utf-8"))["panels"]


def _list_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(_ALERTS.read_text("utf-8"))["groups"]
    assert isinstance(group["rules"], list)
    return group["rules"]


def _list_expressions() -> dict[str, str]:
    """By where they stand."""
    board = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in _list_panels()
        for target in panel.get("targets", ())
    }
    return board | {rule["alert"]: rule["expr"] for rule in _list_rules()}


@cache
def list_documented() -> Mapping[str, frozenset[str]]:
    """The labels of each metric of docs/metrics.md: a histogram by its name, a counter with `_total`."""
    text = (_ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(gateway_\w+)(?:\{([\w, ]+)\})?` \|", text, re.MULTILINE)
    return {name: frozenset(filter(None, re.split(r",\s*", labels))) for name, labels in rows}


def list_labels() -> Mapping[str, frozenset[str]]:
    """By the name of a sample; the parts of a histogram may be asked for as long as the document has it."""
    found = dict(list_documented())
    for name, labels in list_documented().items():
        if name.endswith(("_seconds", "_ratio")):
            found[f"{name}_bucket"] = labels | {"le"}
            found[f"{name}_count"] = found[f"{name}_sum"] = labels
            del found[name]
    return found


def _find_mistakes(expression: str) -> list[str]:
    """Metrics and labels that do not exist."""
    labels, mistakes, known = list_labels(), list[str](), set(_TARGET)
    for name, selector in _SELECTOR.findall(expression):
        if name not in labels:
            mistakes.append(name)
            continue
        known |= labels[name]
        mistakes += [
            f"{name}: {each}" for each in _MATCHER.findall(selector) if each not in labels[name] | _TARGET
        ]
    named = (each.strip() for group in _GROUPING.findall(expression) for each in group.split(","))
    return mistakes + [each for each in named if each not in known]


@pytest.mark.parametrize("place", _list_expressions())
def test_an_expression_asks_for_what_there_is(place: str) -> None:
    expression = _list_expressions()[place]
    assert _SELECTOR.search(expression) or place == "GatewayDown"
    assert _find_mistakes(expression) == []


@pytest.mark.parametrize(
    "expression",
    [
        "rate(gateway_requests[5m])",
        "gateway_open_requests{plan='x', color=\"red\"}",
        "sum by (tenant) (gateway_open_requests)",
        "gateway_overhead_seconds",
    ],
)
def test_a_mistake_in_an_expression_would_be_found(expression: str) -> None:
    assert len(_find_mistakes(expression)) == 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rendered() -> AsyncIterator[str]:
    """The metrics of a gateway that has compacted."""
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=ADMIN)) as product:
        house = House(toy, product, "sk-of-nobody")
        run = await house.play(make_session(30, 3), Shape(max_tokens=1_000))
        await house.at_rest()
        status, text = await house.admin("/metrics")
        assert status == 200
        # They name no conversation, key or model.
        assert not any(word in text for word in (run.conversation, "key:", "toy-model", "sk-of-nobody"))
        yield text


def test_a_gateway_renders_every_metric_with_the_documented_labels(rendered: str) -> None:
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", rendered, re.MULTILINE))
    families = {name for name in types if not name.endswith("_created")}
    assert families == list_documented().keys() - _WORKERS
    assert {name for name in families if types[name] == "histogram"} == {
        name for name in families if f"{name}_bucket" in list_labels()
    }
    samples = [each for family in text_string_to_metric_families(rendered) for each in family.samples]
    seen = {each.name: frozenset(each.labels) for each in samples if not each.name.endswith("_created")}
    assert {name: found for name, found in seen.items() if found != list_labels()[name]} == {}
    # What has happened is counted.
    counted = {sample.name: sample.value for sample in samples if sample.value}
    assert {
        *("gateway_requests_total", "gateway_overhead_seconds_count", "gateway_upstream_seconds_count"),
        *("gateway_upstream_first_byte_seconds_count", "gateway_tokens_total", "gateway_usage_tokens_total"),
        *("gateway_compactions_total", "gateway_compactions_by_trigger_total", "gateway_cache_breaks_total"),
        *("gateway_summary_calls_total", "gateway_summary_tokens_total", "gateway_compaction_seconds_count"),
        *("gateway_estimate_ratio_count", "gateway_store_seconds_count", "gateway_memory_limit_bytes"),
    } <= counted.keys()


def test_every_metric_of_the_document_has_a_unit_or_counts() -> None:
    rows = re.findall(
        r"^\| `gateway_\w+[^|]*\| ([^|]+) \|", (_ROOT / "docs/metrics.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 35
    units = {"count", "seconds", "tokens", "US dollars", "bytes", "ratio", "1"}
    assert set(map(str.strip, rows)) <= units


def test_every_alert_is_explained_to_those_who_get_it() -> None:
    text = (_ROOT / "docs" / "operations.md").read_text("utf-8")
    explained = set(re.findall(r"^\| `(Gateway\w+)` \|", text, re.MULTILINE))
    assert explained == {rule["alert"] for rule in _list_rules()}
    for rule in _list_rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]


def test_the_rules_of_the_operator_are_the_same() -> None:
    manifest = yaml.safe_load((_DEPLOY / "kubernetes/components/monitoring/rules.yaml").read_text("utf-8"))
    assert manifest["kind"] == "PrometheusRule"
    assert manifest["spec"] == yaml.safe_load(_ALERTS.read_text("utf-8"))


def test_every_panel_says_what_it_shows_and_lies_beside_the_others() -> None:
    panels = list(_list_panels())
    assert len({panel["id"] for panel in panels}) == len(panels) > 30
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or (panel["description"] and panel["targets"])


def test_prometheus_finds_both_gateways_and_its_rules(tmp_path: Path) -> None:
    services = yaml.safe_load((_DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    monitoring = yaml.safe_load((_DEPLOY / "compose.monitoring.yaml").read_text("utf-8"))["services"]
    config = yaml.safe_load((_DEPLOY / "prometheus" / "prometheus.yaml").read_text("utf-8"))
    (scrape,) = config["scrape_configs"]
    (static,) = scrape["static_configs"]
    port = read_facts(tmp_path, "")["admin"]["port"]
    assert static["targets"] == [f"{name}:{port}" for name in services if name.startswith("gateway")]
    assert (
        scrape["authorization"]["credentials_file"]
        == f"/run/secrets/{monitoring['prometheus']['secrets'][0]}"
    )
    sources = [each.split(":")[0] for service in monitoring.values() for each in service["volumes"]]
    assert all((_DEPLOY / source).exists() for source in sources if source.startswith("."))
    assert config["rule_files"] == [f"/etc/prometheus/{_ALERTS.name}"]


def run_promtool(*words: str) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_understands_the_rules() -> None:
    assert f"{len(_list_rules())} rules found" in run_promtool("check", "rules", str(_ALERTS))


@needs_promtool
def test_the_alerts_fire_when_they_should() -> None:
    run_promtool("test", "rules", str(_ROOT / "tests" / "alerts.test.yaml"))


@needs_promtool
def test_promtool_understands_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"toy{number}", "expr": _fill_in(each)}
        for number, each in enumerate(_list_expressions().values())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "toy", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run_promtool("check", "rules", str(file))


def _fill_in(expression: str) -> str:
    """As Grafana does it."""
    expression = re.sub(r"\$__(rate_interval|range)", "5m", expression)
    return re.sub(r"\$(job|instance|tenant)", ".*", expression)


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_metrics(rendered: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=rendered,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    # A summary of a conversation is not the kind of metric that has this name.
    complaints = [line for line in done.stderr.splitlines() if "include type 'summary'" not in line]
    assert [line for line in complaints if "_created" not in line] == []
