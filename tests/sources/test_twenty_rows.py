"""The systems of the source documents (DESIGN §8), and the tests that prove each of them."""

import ast
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent.parent
_VECTORS = "tests/sources/test_source_vectors.py"
_PRESETS = "tests/sources/test_presets.py"
_TABLE = f"{_PRESETS}::test_a_preset_does_what_its_document_says"
_LOAD = "tests/settings/test_load.py"
_SHIPPED = "tests/settings/test_shipped_files.py"
_STAYS = "tests/endurance/test_presets.py"
_PRUNE = "tests/core/test_prune.py"
_COMMANDS = "tests/test_commands.py"
_LINES = "tests/core/test_lines.py"

PROVEN: dict[int, list[str]] = {
    # Overflow after each step.
    1: [
        f"{_VECTORS}::test_opencode_is_full_as_recorded_for_the_older_formula",
        f"{_VECTORS}::test_opencode_current_is_full_as_recorded",
        "tests/core/test_overflow.py::test_what_is_usable",
        "tests/core/test_overflow.py::test_without_a_context_limit_nothing_overflows",
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
        f"{_SHIPPED}::test_the_prompts_stand_in_the_documents_word_for_word",
        f"{_LOAD}::test_prompts_may_be_written_or_read_from_files_and_the_others_stay_the_presets",
        "tests/wire/test_chat_summary.py::test_the_call_is_two_messages_and_no_tools",
        "tests/test_summary_fit.py::test_the_question_comes_first_and_the_instruction_last",
    ],
    # The resume text.
    4: [
        "tests/test_rewriter.py::test_what_stands_between_opening_and_tail_is_the_summary_and_nothing_else",
        "tests/test_rewriter.py::test_roles_alternate_around_the_summary",
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
        f"{_PRUNE}::test_the_rule_of_the_source_clears_as_recorded",
        f"{_PRUNE}::test_doing_it_twice_chooses_nothing_more",
        "tests/test_golden.py::test_what_leaves_is_what_the_example_shows",
        _TABLE,
    ],
    # Originals stay readable.
    7: [
        "tests/test_originals.py::test_every_message_that_was_summarised_comes_back_byte_for_byte",
        "tests/test_originals.py::test_every_message_that_was_pruned_comes_back_byte_for_byte",
        "tests/test_originals.py::test_a_message_that_is_pruned_and_then_summarised_is_stored_once",
        "tests/test_originals.py::test_one_tenants_originals_are_nobody_elses",
        "tests/test_originals.py::test_a_policy_that_keeps_none_stores_none",
        "tests/test_originals.py::test_a_restart_keeps_them_and_needs_no_request_first",
        "tests/test_originals.py::test_beyond_the_bound_the_oldest_go_first",
    ],
    # More context or another prompt by a plugin, and the event.
    8: [
        "tests/test_hooks.py::test_hooks_add_context_change_instructions_and_replace_the_prompt_in_turn",
        "tests/test_hooks.py::test_what_is_installed_is_asked_too_and_what_cannot_be_loaded_is_left_out",
        "tests/test_events.py::test_each_compaction_is_told_as_a_boundary_and_with_all_that_is_known",
    ],
    # Settings, thresholds, estimators, environment.
    9: [
        f"{_LOAD}::test_only_the_keys_that_were_written_differ_from_the_preset",
        f"{_LOAD}::test_the_estimator_is_the_presets_unless_it_is_written",
        f"{_LOAD}::test_the_environment_switches_compaction_off_everywhere",
        f"{_SHIPPED}::test_every_number_of_a_policy_is_a_key",
        f"{_PRESETS}::test_any_number_of_a_preset_may_be_another",
        "tests/test_policies.py::test_the_first_rule_that_fits_and_names_a_policy_decides",
    ],
    # 90 % and ten messages, and the compaction log.
    10: [
        _TABLE,
        "tests/core/test_cut.py::test_messages_that_leave_no_room_to_grow_are_cut_down_to_the_target",
        "tests/test_compaction_log.py::test_each_compaction_is_logged_with_what_it_took_and_what_came_of_it",
        "tests/test_compaction_log.py::test_a_pruning_and_what_a_person_asked_for_are_logged_too",
        "tests/test_compaction_log.py::test_a_restart_keeps_the_log_and_the_next_entry_goes_on_with_it",
    ],
    # Rolling window and selective pruning; external memory is not yet there.
    11: [
        _TABLE,
        f"{_STAYS}::test_a_rolling_window_keeps_the_task_and_says_that_something_is_missing",
        f"{_STAYS}::test_a_policy_that_only_prunes_asks_no_model",
        "tests/core/test_plan.py::test_a_partial_policy_takes_a_batch_that_does_not_suffice_but_only_near_the_line",
    ],
    # 80 % and 95 % of utilisation, 40 % preserved.
    12: [
        _TABLE,
        f"{_LINES}::test_lines_by_ratio_are_parts_of_the_window_less_the_reserve",
        "tests/core/test_plan.py::test_a_policy_that_applies_early_takes_a_ready_pivot_from_the_soft_line_on",
    ],
    # A cheaper model.
    13: [
        f"{_LOAD}::test_utilization_asks_the_small_model_of_the_family",
        f"{_STAYS}::test_a_cheaper_model_summarises_where_upstream_knows_it",
        f"{_STAYS}::test_where_upstream_does_not_know_it_the_conversations_model_is_asked_and_that_is_remembered",
        "tests/test_summary_fit.py::test_every_message_is_cut_for_the_summariser_where_the_policy_says_so",
        "tests/test_summary_fit.py::test_context_lines_stand_before_the_instruction_and_instructions_behind_it",
    ],
    # Hooks around a compaction, and its boundary.
    14: [
        "tests/test_hooks.py::test_a_hook_hears_what_its_source_says_and_can_prove_who_sent_it",
        "tests/test_hooks.py::test_after_a_compaction_the_session_is_told_to_start_again",
        "tests/test_events.py::test_a_boundary_has_the_fields_of_its_source_and_no_other",
    ],
    # By hand, with instructions.
    15: [
        "tests/test_manual_compaction.py::test_a_compaction_asked_for_between_two_requests_applies_from_the_next_one_on",
        "tests/test_manual_compaction.py::test_it_needs_neither_a_known_window_nor_automatic_compaction",
        "tests/test_manual_compaction.py::test_what_was_asked_for_survives_a_restart",
        f"{_COMMANDS}::test_the_gateway_compacts_answers_itself_and_asks_upstream_for_the_summary_only",
        f"{_COMMANDS}::test_the_same_command_again_makes_no_second_summary",
        f"{_COMMANDS}::test_only_tenants_whose_policy_allows_it_have_commands",
    ],
    # The long window.
    16: [
        "tests/core/test_beta.py::test_a_sonnet_with_the_flag_has_the_long_window",
        "tests/core/test_beta.py::test_no_other_model_has_it",
    ],
    # Old long results are cut.
    17: [
        _TABLE,
        f"{_PRUNE}::test_only_long_results_are_cut_and_only_what_that_saves_counts",
        f"{_PRUNE}::test_the_newest_messages_are_kept_where_the_policy_says_so",
    ],
    # Without a summary, and estimates.
    18: [
        f"{_PRESETS}::test_without_summaries_utilization_has_a_digest_at_its_hard_line",
        "tests/core/test_plan.py::test_a_policy_may_want_a_digest_at_the_hard_line_where_no_summary_is_to_be_had",
        "tests/test_estimate_error.py::test_steps_of_recorded_sessions_are_estimated_well",
    ],
    # Pruning by the rule of 004.
    19: [
        _TABLE,
        f"{_PRUNE}::test_everything_may_fill_the_protected_part",
        f"{_PRUNE}::test_exactly_full_stops_the_protection_of_a_policy_that_overshoots",
        f"{_PRUNE}::test_a_message_counts_for_no_more_than_its_cap",
        f"{_PRUNE}::test_tools_are_protected_by_the_beginning_of_their_names",
        "tests/test_tokens.py::test_document_004_rounds_up",
    ],
}
# The session summary; of others external memory (11).
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
