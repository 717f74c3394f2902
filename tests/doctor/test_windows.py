"""Models whose window nobody knows."""

from pathlib import Path

from tests.toy.doctoring import NO_STORE, find_bad, find_one, name_upstream, run_doctor, serving_models

NO_LIST = name_upstream("http://127.0.0.1:9/v1", ", discover: false")


async def test_an_unknown_model_gets_a_rule_to_paste(tmp_path: Path) -> None:
    found = find_one(await run_doctor(tmp_path, NO_STORE + NO_LIST, "--model", 'my"model'), "windows")
    assert "its window is unknown" in found.what
    assert found.fix is not None and found.fix.startswith('models: [{match: "my\\"model", context:')


async def test_a_model_that_no_upstream_lists(tmp_path: Path) -> None:
    async with serving_models(names=["qwen3-coder", "toy-2"]) as base_url:
        text = NO_STORE + name_upstream(base_url) + "models: [{match: 'qwen*', context: 9000}]\n"
        found = await run_doctor(tmp_path, text, "--model", "qwen3-codr")
    bad = find_bad(found, "windows")
    assert "no upstream with a list of models has it" in bad[0].what
    assert "use a model that it lists, such as 'qwen3-coder'" in (bad[0].fix or "")
    # The list itself has a model that no rule and no table knows.
    assert "toy-2" in bad[1].what and 'match: "toy-2"' in (bad[1].fix or "")


async def test_models_that_a_rule_names_are_looked_up(tmp_path: Path) -> None:
    text = NO_STORE + NO_LIST + "models: [{match: mine, context: 9000}, {match: 'other-*', context: 1000}]\n"
    found = [each for each in await run_doctor(tmp_path, text) if each.subject == "windows"]
    assert [each.what for each in found] == ["mine: 9,000 tokens, from configured"]
