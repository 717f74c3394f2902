"""The systems of the source documents (docs/sources.md), and the tests that prove each of them."""

import ast
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent.parent
_VECTORS = "tests/sources/test_source_vectors.py"
_PRESETS = "tests/sources/test_presets.py"
_TABLE = f"{_PRESETS}::test_a_preset_behaves_as_its_document_describes"
_LOAD = "tests/settings/test_load.py"
_SHIPPED = "tests/settings/test_shipped_files.py"
_STAYS = "tests/endurance/test_presets.py"

PROVEN: dict[int, list[str]] = {
    # Overflow after each step.
    1: [
        f"{_VECTORS}::test_opencode_is_full_as_recorded_for_the_older_formula",
        f"{_VECTORS}::test_opencode_current_is_full_as_recorded",
        "tests/core/limits/test_thresholds.py::test_usable_tokens_follow_the_source_formula",
        "tests/core/limits/test_thresholds.py::test_without_a_context_limit_nothing_overflows",
        _TABLE,
    ],
    # The queue of markers.
    2: [
        "tests/state/test_tasks.py::test_after_a_restart_a_marker_is_taken_once_and_gone_for_good",
        "tests/endurance/test_branches.py::test_a_restart_in_mid_session_keeps_pivot_and_summary",
        "tests/endurance/test_branches.py::test_a_client_that_hangs_up_still_gets_its_summary_next_time",
    ],
    # The compaction agent and its prompts.
    3: [
        f"{_SHIPPED}::test_the_prompts_are_in_the_documents_word_for_word",
        "tests/settings/test_presets.py::test_a_prompt_may_be_text_or_a_file_and_the_others_stay_the_presets",
        "tests/wire/formats/chat/test_render.py::test_a_summary_request_is_two_messages_without_tools",
        "tests/compaction/test_summary_prompt.py::test_the_question_comes_first_and_the_instruction_last",
    ],
    # The resume text.
    4: [
        "tests/pipeline/test_rewriter.py::test_what_stands_between_opening_and_tail_is_the_summary_and_nothing_else",
        "tests/pipeline/test_rewriter.py::test_roles_alternate_around_the_summary",
    ],
    # History is cut at the newest summary; failed ones never cut.
    5: [
        f"{_VECTORS}::test_opencode_sends_the_newest_summary_and_what_follows_it",
        f"{_VECTORS}::test_a_fork_of_a_compacted_conversation_inherits_the_cut",
        "tests/recovery/test_failing_summaries.py::test_what_still_fits_goes_on_unchanged",
    ],
    # Pruning by the rule of 000.
    6: [
        f"{_VECTORS}::test_opencode_prunes_as_recorded",
        "tests/core/compaction/test_prune.py::test_the_source_rule_clears_the_same_results_as_recorded",
        "tests/core/compaction/test_prune.py::test_pruning_twice_chooses_nothing_more",
        "tests/test_golden.py::test_the_forwarded_body_is_that_of_the_example",
        _TABLE,
    ],
    # Originals stay readable.
    7: [
        "tests/end_to_end/test_originals.py::test_every_summarized_message_comes_back_byte_for_byte",
        "tests/end_to_end/test_originals.py::test_every_pruned_message_comes_back_byte_for_byte",
        "tests/end_to_end/test_originals.py::test_a_message_that_is_pruned_and_later_summarized_is_stored_once",
        "tests/end_to_end/test_originals.py::test_originals_of_one_tenant_are_not_found_by_another",
        "tests/end_to_end/test_originals.py::test_a_policy_without_originals_stores_none",
        "tests/end_to_end/test_originals.py::test_originals_are_readable_after_a_restart_before_any_request",
        "tests/end_to_end/test_originals.py::test_above_the_configured_size_the_oldest_originals_are_deleted_first",
    ],
    # More context or another prompt by a plugin, and the event.
    8: [
        "tests/hooks/test_webhook.py::test_webhooks_add_context_change_instructions_and_replace_the_prompt_in_turn",
        "tests/hooks/test_plugin.py::test_installed_plugins_are_asked_and_broken_ones_are_left_out",
        "tests/reporting/test_events.py::test_each_compaction_is_published_as_a_boundary_and_with_every_detail",
    ],
    # Settings, thresholds, estimators, environment.
    9: [
        "tests/settings/test_presets.py::test_only_the_keys_that_were_written_differ_from_the_preset",
        "tests/settings/test_presets.py::test_the_estimator_comes_from_the_preset_unless_it_is_written",
        f"{_LOAD}::test_the_environment_can_disable_compaction_for_all_policies",
        "tests/settings/test_policy_schema.py::test_every_field_of_a_policy_has_a_text",
        f"{_PRESETS}::test_any_number_of_a_preset_may_be_changed",
        "tests/test_tenants.py::test_the_first_rule_that_fits_and_names_a_policy_decides",
    ],
    # 90 % and ten messages, and the compaction log.
    10: [
        _TABLE,
        "tests/core/compaction/test_cut.py::test_a_tail_that_leaves_no_room_to_grow_is_reduced_to_the_target",
        "tests/reporting/test_compaction_log.py::test_each_compaction_is_logged_with_its_cost_and_its_outcome",
        "tests/reporting/test_compaction_log.py::test_prunings_and_manual_compactions_are_logged_too",
        "tests/reporting/test_compaction_log.py::test_after_a_restart_entries_are_added_to_the_same_log",
    ],
    # Rolling window and selective pruning; external memory is not yet there.
    11: [
        _TABLE,
        f"{_STAYS}::test_a_rolling_window_keeps_the_task_and_says_that_something_is_missing",
        f"{_STAYS}::test_a_policy_that_only_prunes_asks_no_model",
        "tests/core/compaction/test_plan.py::test_a_partial_policy_takes_a_batch_that_is_not_enough_but_only_above_the_soft_threshold",
    ],
    # 80 % and 95 % of utilisation, 40 % preserved.
    12: [
        _TABLE,
        "tests/core/limits/test_thresholds.py::test_ratio_thresholds_are_parts_of_the_window_less_the_reserve",
        "tests/core/compaction/test_plan.py::test_a_policy_that_applies_early_takes_a_ready_pivot_from_the_soft_threshold_on",
    ],
    # A cheaper model.
    13: [
        "tests/settings/test_presets.py::test_utilization_summarizes_with_the_small_model_of_the_family",
        f"{_STAYS}::test_a_cheaper_model_summarises_where_upstream_knows_it",
        f"{_STAYS}::test_where_upstream_does_not_know_it_the_conversations_model_is_asked_and_that_is_remembered",
        "tests/compaction/test_summary_prompt.py::test_a_policy_may_cut_every_message_for_the_summarizer",
        "tests/compaction/test_summary_prompt.py::test_context_lines_come_before_the_instruction_and_instructions_behind_it",
    ],
    # Hooks around a compaction, and its boundary.
    14: [
        "tests/hooks/test_webhook.py::test_a_webhook_gets_the_documented_fields_and_a_signature",
        "tests/hooks/test_webhook.py::test_after_a_compaction_the_webhook_is_told_of_the_session_start",
        "tests/reporting/test_events.py::test_a_boundary_has_exactly_the_documented_fields",
    ],
    # By hand, with instructions.
    15: [
        "tests/end_to_end/test_manual_compaction.py::test_a_compaction_between_two_requests_applies_from_the_next_one_on",
        "tests/pipeline/test_commands.py::test_a_command_needs_neither_a_known_window_nor_automatic_compaction",
        "tests/end_to_end/test_manual_compaction.py::test_a_scheduled_compaction_survives_a_restart",
        "tests/pipeline/test_commands.py::test_the_gateway_compacts_and_responds_and_upstream_gets_the_summary_call_only",
        "tests/pipeline/test_commands.py::test_the_same_command_again_makes_no_second_summary",
        "tests/pipeline/test_commands.py::test_only_tenants_whose_policy_allows_it_have_commands",
    ],
    # The long window.
    16: [
        "tests/core/limits/test_model_limits.py::test_a_sonnet_with_the_flag_has_the_long_window",
        "tests/core/limits/test_model_limits.py::test_no_other_model_has_the_long_window",
    ],
    # Old long results are cut.
    17: [
        _TABLE,
        "tests/core/compaction/test_prune.py::test_only_long_results_are_cut_and_only_the_saved_part_counts",
        "tests/core/compaction/test_prune.py::test_the_newest_messages_are_kept_if_the_policy_says_so",
    ],
    # Without a summary, and estimates.
    18: [
        f"{_PRESETS}::test_without_summaries_utilization_uses_a_digest_at_its_hard_threshold",
        "tests/core/compaction/test_plan.py::test_a_policy_may_want_a_digest_at_the_hard_threshold_if_no_summary_is_available",
        "tests/planning/test_estimate_error.py::test_steps_of_recorded_sessions_are_estimated_well",
    ],
    # Pruning by the rule of 004.
    19: [
        _TABLE,
        "tests/core/compaction/test_prune.py::test_all_messages_may_count_for_the_protected_part",
        "tests/core/compaction/test_prune.py::test_with_overshoot_a_full_protected_part_protects_nothing_more",
        "tests/core/compaction/test_prune.py::test_a_message_counts_for_no_more_than_its_cap",
        "tests/core/compaction/test_prune.py::test_tools_are_protected_by_a_prefix_of_their_names",
        "tests/planning/test_tokenizer.py::test_the_other_count_by_length_rounds_up",
    ],
}
# The session summary. External memory (11) is proven by other tests.
NOT_YET = {20}


def test_every_row_is_proven_or_named_as_missing() -> None:
    assert PROVEN.keys() | NOT_YET == set(range(1, 21))
    assert not PROVEN.keys() & NOT_YET


@pytest.mark.parametrize("row", PROVEN)
def test_the_tests_that_prove_a_row_exist(row: int) -> None:
    assert PROVEN[row]
    for proof in PROVEN[row]:
        path, _, name = proof.partition("::")
        tree = ast.parse((_ROOT / path).read_text("utf-8"))
        functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, proof
