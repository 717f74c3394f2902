"""The dashboard, the alert rules and docs/metrics.md know the metrics that a gateway has, and no others."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.settings import load_settings
from tests.reporting.metrics.rendered import find_families, find_families_of_workers, list_labels
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

_ROOT = Path(__file__).resolve().parents[1]
_DEPLOY = _ROOT / "deploy"
_ALERTS = _DEPLOY / "prometheus" / "alerts.yaml"
_SELECTOR = re.compile(r"\b(gateway_\w+)(\{[^}]*\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_GROUPING = re.compile(r"\bby \(([^)]*)\)")
# What Prometheus adds to each sample.
_TARGET = frozenset({"job", "instance"})
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


async def _render_real() -> str:
    """The metrics of a gateway that has compacted."""
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more="admin: {port: 0}\n")) as gateway,
    ):
        await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
        await gateway.settle()
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{gateway.admin_port}/metrics") as response,
        ):
            return await response.text()


async def test_a_real_gateway_renders_every_metric_with_these_labels() -> None:
    text, labels = await _render_real(), list_labels()
    families = list(text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    seen = {
        sample.name: frozenset(sample.labels) for sample in samples if not sample.name.endswith("_created")
    }
    assert {name: found for name, found in seen.items() if found != labels[name]} == {}
    # What has happened is counted.
    counted = {sample.name: sample.value for sample in samples if sample.value}
    assert {
        *("gateway_requests_total", "gateway_overhead_seconds_count", "gateway_upstream_seconds_count"),
        *("gateway_upstream_first_byte_seconds_count", "gateway_tokens_total", "gateway_usage_tokens_total"),
        *("gateway_compactions_total", "gateway_compactions_by_trigger_total", "gateway_cache_breaks_total"),
        *("gateway_summary_calls_total", "gateway_summary_tokens_total", "gateway_compaction_seconds_count"),
        *("gateway_estimate_ratio_count", "gateway_store_seconds_count", "gateway_memory_limit_bytes"),
    } <= counted.keys()


async def test_the_document_explains_every_metric_and_no_other() -> None:
    there = find_families(await _render_real()) | await find_families_of_workers()
    text = (_ROOT / "docs" / "metrics.md").read_text("utf-8")
    explained = re.findall(r"^\| `(gateway_\w+)(?:\{([\w, ]+)\})?` \|", text, re.MULTILINE)
    assert {name for name, _ in explained} == there
    labels = list_labels()
    for name, named in explained:
        real = labels.get(name) if name in labels else labels[f"{name}_sum"]
        assert frozenset(filter(None, named.split(","))) == real, name


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


def test_prometheus_finds_both_gateways_and_its_rules() -> None:
    services = yaml.safe_load((_DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    monitoring = yaml.safe_load((_DEPLOY / "compose.monitoring.yaml").read_text("utf-8"))["services"]
    config = yaml.safe_load((_DEPLOY / "prometheus" / "prometheus.yaml").read_text("utf-8"))
    (scrape,) = config["scrape_configs"]
    (static,) = scrape["static_configs"]
    port = load_settings(None, {}).admin.port
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
async def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    text = await _render_real()
    done = subprocess.run(  # noqa: ASYNC221 - nothing else runs
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (0, 3), done.stderr
    # A summary of a conversation is not the kind of metric that has this name.
    complaints = [line for line in done.stderr.splitlines() if "include type 'summary'" not in line]
    assert [line for line in complaints if "_created" not in line] == []
