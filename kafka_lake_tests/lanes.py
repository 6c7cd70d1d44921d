"""Which tests belong to `make test`, and which to `make exhaustive`, the longer lane that runs at night.

A test is in the longer lane for one of two reasons: it is one more case of a test (`exhaustive`, beside its
parameters), or what it proves in full is shown in short by another test (`SHOWN_IN_SHORT`, here).
"""

from collections.abc import Mapping
from typing import Any

import pytest

SHOWN_IN_SHORT: Mapping[str, str] = {
    # Random histories; what a rule sees of changes, kills and marks one by one.
    "integration/test_keyed_rules.py::test_random_changes_refusals_kills_and_replays_end_as_a_model_in_memory": (
        "integration/test_keyed_rules.py::test_a_rule_sees_what_a_change_tells_and_may_fail_or_warn"
    ),
    "integration/test_rules.py::test_rules_that_look_at_other_tables_and_at_earlier_commits": (
        "decode/test_rules.py::test_a_foreign_key_is_in_the_other_table_and_null_passes"
    ),
    "integration/test_keyed.py::test_a_partial_change_that_marks_a_row_leaves_the_other_columns": (
        "integration/test_keyed.py::test_the_order_is_the_columns_and_a_delete_is_remembered"
    ),
    # Kills, other writers, tables below, other types of columns.
    "integration/test_derived_partitions.py::test_a_day_is_computed_again_and_no_other_row_changes": (
        "integration/test_derived_partitions.py::test_dagster_shows_the_days_and_materializes_one_or_a_range"
    ),
    **dict.fromkeys(
        (
            f"integration/test_derived_days.py::test_{each}"
            for each in (
                "each_partition_is_what_duckdb_computes_and_others_are_as_they_were",
                "rows_of_a_key_may_be_of_several_days",
                "a_table_that_is_replaced_is_computed_as_a_whole",
                "a_row_of_others_goes_and_tables_below_notice",
                "days_that_have_expired_stay_if_another_one_is_computed",
            )
        ),
        "integration/test_derived_partitions.py::test_dagster_shows_the_days_and_materializes_one_or_a_range",
    ),
    # What the audit says of such intervals; that it is asked before a history is published.
    "integration/test_history.py::test_nothing_is_published_if_the_table_has_a_change_twice": (
        "integration/test_history.py::test_a_late_change_splits_the_interval_that_it_falls_in"
    ),
    "integration/test_keyed.py::test_the_columns_of_a_records_key_may_be_called_otherwise_in_the_table": (
        "integration/test_keyed.py::test_the_table_is_what_the_database_is"
    ),
    "integration/test_metrics.py::test_a_broker_that_dies_takes_its_topics_values_away_and_no_others": (
        "unit/test_metrics.py::test_brokers_that_do_not_answer_take_ends_and_lag_away_and_are_told_of_once"
    ),
    "integration/test_adopt.py::test_the_position_is_one_commit_without_rows_that_names_its_source": (
        "integration/test_adopt.py::test_the_command_changes_nothing_without_yes"
    ),
    # Many commits until a fifth of the rows is deleted.
    "integration/test_maintain.py::test_by_default_a_fifth_of_deleted_rows_is_enough": (
        "integration/test_maintain.py::test_a_compaction_in_the_midst_of_a_commit_has_it_planned_again[upsert]"
    ),
    # For half a minute, without a pause.
    "integration/test_maintain.py::test_merges_and_compactions_at_the_same_time_both_get_on": (
        "integration/test_maintain.py::test_a_compaction_in_the_midst_of_a_commit_has_it_planned_again[upsert]"
    ),
    # Where an expression raises an error, the record is found in the same way.
    "integration/test_rules.py::test_a_text_that_overflows_the_stack_of_rlike_is_found_and_spark_goes_on": (
        "integration/test_rules.py::test_a_row_on_which_an_expression_raises_an_error_is_found"
    ),
    "integration/test_rules.py::test_a_replay_of_dead_letters_compares_by_the_columns_of_today": (
        "integration/test_rules.py::test_dead_letters_of_a_rule_are_replayed_once_it_is_relaxed"
    ),
    # A kill between two publications, of a keyed table with values that its source doesn't send.
    "integration/test_keyed.py::"
    "test_a_change_that_finds_what_it_lacked_once_a_run_has_died_is_no_dead_letter_any_more[False]": (
        "integration/test_keyed.py::test_a_run_killed_at_a_step_leaves_each_key_as_it_shall_be"
    ),
    # What a replay does with rows whose records Kafka no longer has, in the model.
    "integration/test_replay_and_reset.py::test_a_replay_of_what_kafka_lost_is_refused_or_keeps_the_rows": (
        "unit/test_protocol_model.py::test_rows_whose_records_kafka_compacted_away_stay_when_they_are_read_again"
    ),
    "integration/test_keyed.py::test_what_is_read_again_from_before_a_tombstone_stays_gone[False-0:4-left0]": (
        "integration/test_keyed.py::test_the_order_is_the_columns_and_a_delete_is_remembered"
    ),
    # A rule that fails a run, and where rules are asked.
    "integration/test_rules.py::test_a_rule_that_fails_and_one_beyond_its_share_publish_nothing": (
        "integration/test_routes.py::test_a_table_that_refuses_a_batch_stays_and_the_others_go_on"
    ),
    "e2e/test_engine.py::test_rules_are_kept_through_a_connect_server": (
        "integration/test_rules.py::test_what_breaks_rules_is_one_dead_letter_each_and_all_others_are_rows"
    ),
    # The same kill; what rules refuse are dead letters like others.
    "integration/test_rules.py::test_a_run_killed_between_its_publications_is_completed_by_the_next": (
        "integration/test_exactly_once.py::test_a_run_killed_at_any_step_is_completed_by_the_next"
    ),
    # Each step, and compaction, expiry and replays besides.
    "integration/test_derived.py::test_derived_tables_are_what_a_plain_computation_gives_after_any_history": (
        "integration/test_derived.py::test_files_without_new_rows_or_touched_keys_are_not_read"
    ),
    "integration/test_derived.py::test_the_examples_are_what_a_plain_computation_gives_with_late_rows_too": (
        "integration/test_derived.py::test_files_without_new_rows_or_touched_keys_are_not_read"
    ),
    # More queries of each kind.
    "integration/test_derived_verify.py::test_wrong_incremental_queries_are_refused_with_both_rows": (
        "integration/test_derived_verify.py::test_a_wrong_query_is_refused_by_the_first_commit_and_a_right_one_never"
    ),
    # Routes above it, and tables below it.
    "integration/test_derived_chain.py::test_the_ledger_is_right_at_each_level_of_a_chain_whatever_happens": (
        "integration/test_derived.py::test_files_without_new_rows_or_touched_keys_are_not_read"
    ),
    # Many commits of a keyed table; and the same with deletion vectors.
    "integration/test_maintain.py::test_keyed_tables_lose_their_delete_files_and_no_row[2]": (
        "integration/test_maintain.py::test_a_compaction_in_the_midst_of_a_commit_has_it_planned_again[upsert]"
    ),
    "integration/test_maintain.py::test_keyed_tables_lose_their_delete_files_and_no_row[3]": (
        "integration/test_maintain.py::test_a_compaction_in_the_midst_of_a_commit_has_it_planned_again[upsert]"
    ),
    # Each step at which a run can die, each race: the model takes them all in random order.
    "integration/test_replay_and_reset.py::test_a_replay_killed_at_any_step_leaves_every_record_once": (
        "integration/test_replay_and_reset.py::test_a_dead_letter_replay_killed_at_any_step_leaves_every_record_once"
    ),
    "integration/test_replay_and_reset.py::test_a_reconciliation_that_removes_too_much_is_not_published": (
        "unit/test_protocol_model.py::test_every_history_ends_with_every_record_once"
    ),
    "integration/test_replay_and_reset.py::test_a_reconciliation_that_loses_a_race_is_completed_by_the_next_run": (
        "unit/test_protocol_model.py::test_every_history_ends_with_every_record_once"
    ),
    "integration/test_exactly_once.py::test_dead_letters_of_a_killed_run_stay_single_if_others_come_between": (
        "unit/test_protocol_model.py::test_every_history_ends_with_every_record_once"
    ),
    "integration/test_exactly_once.py::test_a_writer_that_is_always_faster_keeps_no_run_from_its_commit": (
        "integration/test_exactly_once.py::test_the_loser_of_a_race_takes_what_the_winner_left"
    ),
    "integration/test_exactly_once.py::test_a_run_killed_at_any_step_is_completed_by_the_next[primary staged-False]": (
        "chaos/test_chaos.py::test_whatever_strikes_every_record_is_there_once"
    ),
    "integration/test_keyed.py::test_a_run_killed_at_a_step_leaves_each_key_as_it_shall_be[deletes published]": (
        "integration/test_keyed.py::test_a_run_killed_at_a_step_leaves_each_key_as_it_shall_be"
    ),
    "integration/test_maintenance.py::test_the_next_run_sweeps_the_branches_of_a_dead_one[primary staged]": (
        "chaos/test_chaos.py::test_whatever_strikes_every_record_is_there_once"
    ),
    "integration/test_reconcile.py::test_dead_letters_of_a_dead_run_are_reconciled_when_a_slower_run_publishes": (
        "unit/test_protocol_model.py::test_every_history_ends_with_every_record_once"
    ),
    "integration/test_reconcile.py::test_merge_on_read_dead_letters_come_back_after_a_rollback": (
        "integration/test_reconcile.py::test_dead_letters_deleted_by_others_beside_an_older_file"
    ),
    # What others do to a table.
    "integration/test_maintenance.py::test_a_position_is_not_rebuilt_from_dead_letters_whose_rows_are_missing": (
        "integration/test_maintenance.py::test_a_position_that_expired_is_rebuilt_from_the_rows"
    ),
    "integration/test_maintenance.py::test_a_position_that_cannot_be_rebuilt_with_certainty_is_refused": (
        "integration/test_maintenance.py::test_a_position_that_expired_is_rebuilt_from_the_rows"
    ),
    "integration/test_maintenance.py::test_a_table_whose_snapshots_tell_no_totals_is_not_taken_for_empty": (
        "integration/test_maintenance.py::test_a_position_that_expired_is_rebuilt_from_the_rows"
    ),
    "integration/test_maintenance.py::test_a_live_run_survives_a_clean_up_with_the_default_age": (
        "integration/test_maintenance.py::test_files_that_no_snapshot_knows_are_removed_and_all_others_stay"
    ),
    "integration/test_cut_off.py::test_dead_letters_from_behind_a_cut_stay": (
        "integration/test_cut_off.py::test_records_behind_a_cut_are_not_missed_in_silence"
    ),
    "integration/test_cut_off.py::test_a_cut_can_be_agreed_to_by_a_reset_to_the_very_same_offset": (
        "integration/test_cut_off.py::test_records_behind_a_cut_are_not_missed_in_silence"
    ),
    "integration/test_cut_off.py::test_another_leader_with_the_same_log_is_nothing_to_stop_at": (
        "unit/test_plan.py::test_a_first_position_has_the_logs_leader_epochs"
    ),
    "integration/test_continuous.py::test_small_files_are_compacted_in_between": (
        "integration/test_exactly_once.py::test_a_compaction_between_two_runs"
    ),
    "integration/test_continuous.py::test_dagsters_terminate_ends_the_run_and_nothing_is_left_behind": (
        "integration/test_continuous.py::test_an_interrupt_in_the_middle_of_a_commit_discards_it"
    ),
    **dict.fromkeys(
        (
            "integration/test_adopt.py::test_a_query_that_was_stopped_is_taken_over_with_records_in_flight",
            "integration/test_adopt.py::test_records_of_the_other_writer_are_never_read_again",
        ),
        "integration/test_adopt.py::test_sink_is_taken_over_after_its_last_commit_only",
    ),
    "integration/test_adopt.py::test_a_table_that_moves_before_the_commit_is_not_taken_over": (
        "integration/test_adopt.py::test_the_command_changes_nothing_without_yes"
    ),
    # Each publication at which a run can die, each race: the model takes them all in random order.
    **dict.fromkeys(
        (
            "integration/test_routes.py::test_each_record_is_in_the_table_of_its_route_once_whatever_kills_the_runs",
            "integration/test_routes.py::test_of_two_racing_runs_each_record_comes_once",
            "integration/test_routes.py::test_a_race_for_the_first_records_of_a_table",
        ),
        "unit/test_topic_model.py::test_each_record_ends_in_each_table_that_takes_it_once",
    ),
    "integration/test_routes_by_value.py::test_values_get_tables_up_to_a_limit_and_each_record_comes_once": (
        "unit/test_topic_model.py::test_each_record_ends_in_each_table_that_takes_it_once"
    ),
    # Each way out of the one job, and a table's share in it.
    "integration/test_routes_together.py::"
    "test_one_job_writes_the_tables_that_it_can_and_the_others_get_what_is_theirs": (
        "integration/test_routes.py::test_odd_values_go_where_the_page_says_and_others_as_unmatched_says"
    ),
    **dict.fromkeys(
        (
            "integration/test_topics.py::"
            "test_each_record_of_each_topic_comes_once_whatever_kills_the_runs_and_races_with_them[one]",
            "integration/test_topics.py::test_a_replay_a_reset_and_dead_letters_are_of_one_topic",
        ),
        "integration/test_topics.py::test_topics_join_and_leave_a_table_that_one_alone_has_filled",
    ),
    "integration/test_derived.py::"
    "test_a_chain_of_tables_is_right_after_late_rows_races_kills_and_a_replay_of_dead_letters": (
        "integration/test_derived.py::test_files_without_new_rows_or_touched_keys_are_not_read"
    ),
    "integration/test_row_expiry.py::test_old_rows_and_dead_letters_go_and_nothing_else_whatever_happens_then": (
        "integration/test_row_expiry.py::test_an_expiry_meets_a_commit_and_a_commit_meets_an_expiry"
    ),
    # What a run of Dagster's tells is shown by one case each.
    **dict.fromkeys(
        (
            "integration/test_dagster.py::test_how_long_records_waited_shows",
            "integration/test_dagster.py::test_a_catch_up_run_continues_while_records_come_until_another_one_waits",
        ),
        "integration/test_dagster.py::test_a_continuous_run_shows_while_it_goes_on_and_what_lies_below_notices",
    ),
    **dict.fromkeys(
        (
            f"integration/test_dagster.py::test_dagster_is_told_of_records_what_the_topic_lets_out[{case}]"
            for case in ("no samples-False-fail", "masked-True-table")
        ),
        "integration/test_dagster.py::test_dagster_is_told_of_records_what_the_topic_lets_out",
    ),
    **dict.fromkeys(
        (
            f"integration/test_dagster.py::test_a_run_without_a_partition_is_for_all_of_them[{case}]"
            for case in ("catching up-settings1", "to the topic's end-settings0")
        ),
        "integration/test_dagster.py::test_a_run_without_a_partition_is_for_all_of_them",
    ),
    **dict.fromkeys(
        (
            f"integration/test_kafka_errors.py::{name}[topics]"
            for name in (
                "test_brokers_that_are_all_down_are_given_up_early",
                "test_who_accepts_connections_and_is_silent_is_given_up_early",
                "test_a_port_where_nothing_listens_is_named_with_the_reason",
            )
        ),
        "integration/test_kafka_errors.py::test_brokers_that_are_all_down_are_given_up_early",
    ),
    "integration/test_maintenance.py::test_a_rollback_during_a_run_stays": (
        "integration/test_maintenance.py::test_rows_that_are_rolled_back_are_read_again_exactly_once"
    ),
    "integration/test_maintenance.py::"
    "test_a_first_run_that_died_with_its_first_position_staged_is_completed_by_the_next": (
        "integration/test_exactly_once.py::test_a_run_killed_at_any_step_is_completed_by_the_next"
    ),
    "integration/test_maintenance.py::"
    "test_a_table_without_rows_that_began_at_the_latest_offset_does_not_begin_again_in_silence[expired]": (
        "integration/test_maintenance.py::"
        "test_a_table_without_rows_that_began_at_the_latest_offset_does_not_begin_again_in_silence"
    ),
    "integration/test_maintenance.py::test_a_table_that_is_dropped_while_a_run_is_staging_is_filled_from_the_start": (
        "integration/test_maintenance.py::test_a_table_that_was_dropped_is_filled_from_the_start"
    ),
    **dict.fromkeys(
        (
            f"integration/test_replay_and_reset.py::test_a_run_fails_beyond_its_limit_of_dead_letters[settings{case}]"
            for case in ("1-True", "3-True")
        ),
        "integration/test_replay_and_reset.py::test_a_run_fails_beyond_its_limit_of_dead_letters",
    ),
    "integration/test_ingest.py::test_a_time_that_no_table_holds_is_null_and_named": (
        "fuzz/test_end_to_end.py::test_every_value_is_in_the_table_or_in_a_dead_letter"
    ),
    "integration/test_evolution.py::"
    "test_a_new_field_beside_nested_ones_that_are_called_otherwise_needs_one_more_pass": (
        "integration/test_ingest.py::test_inferred_columns_grow_with_the_records"
    ),
    "integration/test_exactly_once.py::"
    "test_a_run_killed_at_any_step_is_completed_by_the_next[primary published-True]": (
        "integration/test_exactly_once.py::test_a_run_killed_at_any_step_is_completed_by_the_next"
    ),
    "integration/test_adopt.py::test_a_frozen_table_gets_the_metadata_column_and_nothing_else": (
        "integration/test_adopt.py::test_the_command_changes_nothing_without_yes"
    ),
    **dict.fromkeys(
        (
            f"integration/test_cli_query.py::test_what_is_no_query_is_refused_in_one_line[{case}-Syntax error]"
            for case in ("", "SELEC 1", "DROP TABLE {table}", "INSERT INTO {table} SELECT * FROM {table}")
        ),
        "integration/test_cli_query.py::test_what_is_no_query_is_refused_in_one_line",
    ),
    "integration/test_continuous.py::test_a_table_that_others_rolled_back_is_filled_again_though_the_topic_rests": (
        "integration/test_maintenance.py::test_rows_that_are_rolled_back_are_read_again_exactly_once"
    ),
    "integration/test_fuzz.py::test_random_bytes_behind_real_schema_ids": (
        "unit/test_avro_values.py::test_random_bytes_are_values_or_malformed"
    ),
    # What a value becomes: by Spark and real tables for a few, by the decoders for thousands.
    "integration/test_isolate.py::test_one_poisonous_record_among_a_thousand_becomes_a_dead_letter": (
        "integration/test_isolate.py::test_a_poisonous_first_record_of_a_topic_blocks_nothing"
    ),
    "integration/test_replay_and_reset.py::test_a_table_of_format_v1_is_reconciled_repeatedly": (
        "integration/test_reconcile.py::test_dead_letters_deleted_by_others_beside_an_older_file"
    ),
    "integration/test_replay_and_reset.py::test_a_record_beyond_the_limit_is_a_dead_letter": (
        "decode/test_decode.py::test_a_value_over_the_limit_is_not_parsed"
    ),
    "integration/test_replay_and_reset.py::test_a_replay_by_time_takes_the_records_of_that_time": (
        "integration/test_replay_and_reset.py::test_a_reset_to_an_earlier_offset_doubles_nothing"
    ),
    "integration/test_continuous.py::test_another_run_in_between_is_no_harm": (
        "integration/test_exactly_once.py::test_the_loser_of_a_race_takes_what_the_winner_left"
    ),
    "integration/test_formats.py::test_what_avro_cannot_be_is_a_dead_letter_with_its_reason": (
        "unit/test_avro_values.py::test_bytes_that_no_writer_writes_are_malformed"
    ),
    "integration/test_replay_and_reset.py::test_dead_letters_that_fit_now_become_rows_and_the_rest_stay": (
        "integration/test_replay_and_reset.py::test_dead_letters_move_into_the_table_exactly_once"
    ),
    "integration/test_replay_and_reset.py::test_a_replay_moves_records_between_rows_and_dead_letters": (
        "integration/test_replay_and_reset.py::test_a_reset_to_an_earlier_offset_doubles_nothing"
    ),
    **dict.fromkeys(
        (
            f"integration/test_replay_and_reset.py::test_a_run_fails_beyond_its_limit_of_dead_letters[settings{case}]"
            for case in ("2-False", "4-False", "5-True", "6-False")
        ),
        "integration/test_replay_and_reset.py::test_a_run_fails_beyond_its_limit_of_dead_letters",
    ),
    "integration/test_fuzz.py::test_thousands_of_columns": "unit/test_avro_values.py::test_a_thousand_columns_decode",
    "integration/test_evolution.py::test_names_that_no_column_can_have": (
        "decode/test_decode.py::test_odd_names_are_columns_like_others"
    ),
    "integration/test_evolution.py::test_or_fail_the_run": (
        "integration/test_evolution.py::test_a_frozen_table_refuses_and_one_that_ignores_new_fields_says_so"
    ),
    "integration/test_evolution.py::test_times_are_inferred_where_that_is_asked_for": (
        "unit/test_discover.py::test_text_that_is_a_time_throughout"
    ),
    "integration/test_arrow.py::test_both_ways_make_the_same_rows_and_the_same_dead_letters[schema1]": (
        "fuzz/test_end_to_end.py::test_every_value_is_in_the_table_or_in_a_dead_letter"
    ),
    "decode/test_decode.py::test_dead_letters_of_a_recreated_topic_are_distinguished_from_older_ones": (
        "integration/test_exactly_once.py::test_dead_letters_of_a_new_topic_are_not_taken_for_those_of_the_old"
    ),
    "integration/test_ingest.py::test_a_first_run_that_fails_leaves_no_empty_tables[a transform]": (
        "integration/test_ingest.py::test_a_first_run_that_fails_leaves_no_empty_tables"
    ),
    "integration/test_ingest.py::test_start_latest_means_the_first_run_and_not_every_run[None]": (
        "integration/test_ingest.py::test_start_latest_means_the_first_run_and_not_every_run"
    ),
    "integration/test_deliveries.py::test_a_registry_that_cant_be_retrieved_leaves_the_deliveries_out_and_says_so": (
        "integration/test_formats.py::test_a_registry_that_is_down_fails_the_run_before_anything_is_staged"
    ),
    "integration/test_evolution.py::test_inferred_numbers_are_bigints_or_doubles": (
        "fuzz/test_end_to_end.py::test_every_value_is_in_the_table_or_in_a_dead_letter"
    ),
    "integration/test_evolution.py::test_names_that_are_data_stop_at_the_bound_and_go_into_a_map": (
        "integration/test_evolution.py::test_a_table_is_not_made_with_more_columns_than_the_bound"
    ),
    # Keyed tables.
    "integration/test_keyed.py::test_a_row_for_each_key_as_its_newest_record_left_it": (
        "integration/test_keyed.py::test_the_order_is_the_columns_and_a_delete_is_remembered"
    ),
    "integration/test_keyed_avro.py::test_values_that_were_not_sent_stay": (
        "integration/test_keyed.py::test_the_table_is_what_the_database_is"
    ),
    "integration/test_keyed_truncate.py::"
    "test_a_run_killed_at_a_step_leaves_the_table_as_it_was_and_the_next_one_empties_it[deletes published]": (
        "integration/test_keyed.py::test_a_run_killed_at_a_step_leaves_each_key_as_it_shall_be"
    ),
    "integration/test_history.py::test_a_history_widens_with_its_table": (
        "integration/test_history.py::test_a_late_change_splits_the_interval_that_it_falls_in"
    ),
    "integration/test_keyed.py::test_random_changes_end_as_a_model_in_memory": (
        "integration/test_keyed.py::test_the_table_is_what_the_database_is"
    ),
    "integration/test_keyed.py::test_debezium_without_a_setting_but_its_name": (
        "integration/test_keyed.py::test_the_table_is_what_the_database_is"
    ),
    "integration/test_keyed.py::test_deletes_are_forgotten_after_their_time": (
        "integration/test_keyed.py::test_the_order_is_the_columns_and_a_delete_is_remembered"
    ),
    "integration/test_keyed.py::test_deletes_as_the_settings_say[ignore-left1]": (
        "integration/test_keyed.py::test_deletes_as_the_settings_say"
    ),
    "integration/test_keyed.py::test_a_key_that_was_deleted_in_another_partition_stops_the_run": (
        "integration/test_keyed.py::test_a_key_of_two_partitions_without_an_order_stops_the_run"
    ),
    "integration/test_keyed.py::test_columns_of_debezium_keep_what_was_not_told": (
        "integration/test_keyed.py::test_the_table_is_what_the_database_is"
    ),
    "integration/test_keyed.py::test_a_topic_is_read_again_without_harm_and_by_todays_settings": (
        "integration/test_keyed.py::test_a_run_killed_at_a_step_leaves_each_key_as_it_shall_be"
    ),
    **dict.fromkeys(
        (
            "integration/test_keyed.py::test_a_tombstone_is_newer_than_what_came_before_it_in_its_partition",
            "integration/test_keyed.py::test_text_of_times_is_ordered_by_time",
            "integration/test_keyed.py::test_a_key_may_be_of_any_type_that_has_an_order",
            "integration/test_keyed.py::test_deletes_as_the_settings_say[soft-left0]",
        ),
        "integration/test_keyed.py::test_the_order_is_the_columns_and_a_delete_is_remembered",
    ),
    **dict.fromkeys(
        (
            "integration/test_keyed.py::test_a_change_may_tell_some_columns_and_leave_the_others",
            "integration/test_keyed.py::test_what_a_source_calls_its_columns_means_nothing",
        ),
        "integration/test_keyed.py::test_the_table_is_what_the_database_is",
    ),
    "integration/test_keyed.py::test_a_change_that_makes_its_batch_fail_becomes_a_dead_letter": (
        "integration/test_isolate.py::test_a_poisonous_first_record_of_a_topic_blocks_nothing"
    ),
    **dict.fromkeys(
        (
            "integration/test_keyed_avro.py::test_a_row_has_the_types_of_its_source",
            "integration/test_keyed_avro.py::test_the_row_evolves_in_its_envelope",
            "integration/test_keyed_avro.py::test_what_is_no_change_of_a_row_says_what_it_is",
            "integration/test_keyed_avro.py::test_keys_of_the_row_need_the_row_before",
        ),
        "integration/test_keyed_avro.py::test_debezium_in_avro_without_a_setting_but_its_name",
    ),
    "integration/test_keyed_moved.py::test_moved_row_goes_as_deletes_says": (
        "integration/test_keyed_moved.py::test_key_changed_in_one_update_moves_the_row"
    ),
    **dict.fromkeys(
        (
            "integration/test_keyed_mysql.py::test_the_table_is_what_the_source_is[canal-1]",
            "integration/test_keyed_mysql.py::test_columns_of_the_row_may_tell_the_order",
        ),
        "integration/test_keyed_mysql.py::test_the_table_is_what_the_source_is",
    ),
    **dict.fromkeys(
        (
            "integration/test_history.py::test_a_history_is_that_of_all_events_whatever_dies_in_between",
            "integration/test_history.py::test_versions_of_debezium_count_from_the_time_of_their_change_on",
            "integration/test_history_of_sources.py::test_changes_of_a_part_of_a_row_make_the_versions_that_they_tell",
            "integration/test_history_of_sources.py::test_what_a_connector_sends_once_more_changes_nothing",
            "integration/test_history_of_sources.py::test_a_history_has_the_versions_that_the_database_had",
        ),
        "integration/test_history.py::test_a_late_change_splits_the_interval_that_it_falls_in",
    ),
    **dict.fromkeys(
        (
            "integration/test_history.py::test_a_history_goes_with_the_columns_of_its_records",
            "integration/test_history.py::test_deletes_end_versions_unless_they_are_ignored",
            "integration/test_history_of_sources.py::test_an_interval_has_the_type_of_the_order",
        ),
        "integration/test_history.py::test_a_late_change_splits_the_interval_that_it_falls_in",
    ),
    **dict.fromkeys(
        (
            "integration/test_keyed_truncate.py::test_the_table_is_what_the_model_is_whatever_partition_comes_first",
            "integration/test_keyed_truncate.py::test_a_value_that_was_not_sent_is_not_taken_from_a_row_before_the_truncate",
            "integration/test_keyed_truncate.py::test_an_order_of_offsets_alone_is_enough_in_one_partition",
        ),
        "integration/test_keyed_truncate.py::test_a_truncate_in_the_midst_of_a_batch_takes_what_is_older_than_it",
    ),
    **dict.fromkeys(
        (
            "integration/test_keyed_snapshot.py::test_the_table_is_what_the_database_is_after_each_snapshot",
            "integration/test_keyed_snapshot.py::test_one_batch_may_have_several_snapshots_and_what_is_sent_once_more",
            "integration/test_keyed_snapshot.py::test_a_newer_change_that_stands_for_a_row_of_the_snapshot_is_read_before_rows_go",
            "integration/test_keyed_snapshot.py::test_a_record_that_is_a_dead_letter_may_be_of_any_row",
            "integration/test_keyed_snapshot.py::test_a_snapshot_whose_beginning_was_not_read_takes_nothing_away",
            "integration/test_keyed_snapshot.py::test_rows_that_a_snapshot_lacks_go_at_its_end_and_stay_gone",
            "integration/test_keyed_snapshot.py::test_rows_of_one_table_do_not_go_since_another_one_lacks_them",
            "integration/test_keyed_snapshot.py::test_a_snapshot_of_several_commits_may_be_killed_and_one_that_lacks_too_much_stops_the_run",
        ),
        "integration/test_keyed_snapshot.py::test_a_truncate_and_a_snapshot_take_what_is_older_than_the_newer_of_them",
    ),
    **dict.fromkeys(
        (
            "integration/test_keyed_avro.py::test_a_field_that_is_left_out_may_have_any_type",
            "integration/test_keyed_except.py::test_declared_column_that_is_left_out_tells_deletes",
        ),
        "integration/test_keyed_except.py::test_a_field_that_is_left_out_never_becomes_a_column",
    ),
    "integration/test_keyed_except.py::test_rows_that_are_appended_lack_it_too[False]": (
        "integration/test_keyed_except.py::test_rows_that_are_appended_lack_it_too"
    ),
    "integration/test_keyed_except.py::test_a_table_that_has_the_column_is_refused_until_it_is_dropped": (
        "integration/test_keyed_except.py::test_a_field_that_is_left_out_never_becomes_a_column"
    ),
    "integration/test_history_intervals.py::test_the_rows_are_those_of_all_events_sorted_at_once": (
        "integration/test_history.py::test_a_late_change_splits_the_interval_that_it_falls_in"
    ),
    # What the contract of each catalog runs in any case (`make contract`).
    "integration/test_evolution.py::test_new_fields_at_every_depth_are_found_in_the_pass_that_writes": (
        "integration/test_ingest.py::test_inferred_columns_grow_with_the_records"
    ),
    "contract/test_calls.py::test_a_run_of_one_commit[False-13]": "contract/test_calls.py::test_a_run_of_one_commit",
    "chaos/test_races.py::test_every_race_has_one_winner_and_the_tables_hold_the_winners_rows": (
        "integration/test_exactly_once.py::test_of_two_racing_runs_one_wins"
    ),
    # Dagster, the commands, and the servers of a local stack.
    "integration/test_dagster.py::test_a_continuous_run_that_a_gate_fails_tells_of_the_commits_before": (
        "integration/test_continuous.py::test_a_refused_commit_fails_the_run_and_those_before_it_stay"
    ),
    "contract/kafka_security/test_rights.py::test_to_read_the_topic_is_all_that_a_run_needs": (
        "integration/test_discover.py::test_the_right_to_read_is_enough_and_its_lack_is_told"
    ),
    "integration/test_dagster.py::test_what_a_run_has_told_stays_in_sight_until_it_ends": (
        "integration/test_dagster.py::test_a_continuous_run_shows_while_it_goes_on_and_what_lies_below_notices"
    ),
    "integration/test_dagster.py::test_a_run_without_a_partition_is_for_all_of_them[reading again-settings2]": (
        "integration/test_dagster.py::test_a_run_without_a_partition_is_for_all_of_them"
    ),
    "integration/test_dagster.py::test_dagster_is_told_of_records_what_the_topic_lets_out[quoted-False-fail]": (
        "integration/test_dagster.py::test_dagster_is_told_of_records_what_the_topic_lets_out"
    ),
    "integration/test_dagster.py::test_dagster_is_told_of_records_what_the_topic_lets_out[no samples-True-table]": (
        "integration/test_dagster.py::test_dagster_is_told_of_records_what_the_topic_lets_out"
    ),
    "integration/test_dagster.py::test_dagster_is_told_of_records_what_the_topic_lets_out[quoted-True-table]": (
        "integration/test_dagster.py::test_dagster_is_told_of_records_what_the_topic_lets_out"
    ),
    "integration/test_cli_repair.py::test_dead_letters_come_back_and_the_topic_is_read_again": (
        "integration/test_replay_and_reset.py::test_dead_letters_move_into_the_table_exactly_once"
    ),
    "integration/test_names.py::test_a_namespace_and_a_table_may_be_called_anything": (
        "integration/test_names.py::test_the_shortest_document_makes_a_table_of_a_topic_of_any_name"
    ),
    **dict.fromkeys(
        (
            "integration/test_broker.py::test_data_survive_stop_and_kill",
            "integration/test_broker.py::test_a_second_broker_on_the_same_data_is_refused",
        ),
        "integration/test_broker.py::test_a_broker_ends_with_the_process_that_started_it",
    ),
    "integration/test_dagster.py::test_the_job_knows_the_topics_of_its_code_location": (
        "integration/test_dagster.py::test_the_job_moves_dead_letters_and_what_lies_downstream_notices"
    ),
    "integration/test_discover.py::test_topics_are_listed_and_the_chosen_written": (
        "integration/test_partition_keys.py::test_a_topic_that_discover_writes_has_its_partitions_at_once"
    ),
    "unit/test_cli_errors.py::test_what_libraries_say_goes_to_a_file_unless_it_is_asked_for": (
        "unit/test_cli_errors.py::test_no_broker"
    ),
    "integration/test_kafka_errors.py::test_a_wrong_password_is_told_in_seconds[topics]": (
        "integration/test_kafka_errors.py::test_a_wrong_password_is_told_in_seconds"
    ),
    "unit/test_heartbeat.py::test_a_run_with_a_process_for_each_step_lives_after_the_topics_step": (
        "unit/test_sensor.py::test_a_dead_run_does_not_block_its_topic"
    ),
    # The whole stack.
    "e2e/test_engine.py::test_the_shortest_document_makes_a_table": (
        "integration/test_names.py::test_the_shortest_document_makes_a_table_of_a_topic_of_any_name"
    ),
    "e2e/test_engine.py::test_dead_letters_that_become_rows_are_taken_out": (
        "integration/test_replay_and_reset.py::test_dead_letters_move_into_the_table_exactly_once"
    ),
    "e2e/test_launch.py::test_one_partition_all_of_them_and_the_checks_alone_from_the_launchpad": (
        "integration/test_dagster.py::test_a_run_without_a_partition_is_for_all_of_them"
    ),
    # Each further way to launch.
    **dict.fromkeys(
        (
            f"e2e/test_launch_ways.py::test_{each}"
            for each in (
                "backfill_of_partitions_with_a_gap_reads_them_alone",
                "backfill_of_several_assets_is_green",
                "one_run_of_several_assets_is_for_their_partitions",
                "replace_leaves_each_row_once",
                "terminated_run_keeps_its_commits",
                "run_executed_again_from_failure_succeeds",
                "partition_that_kafka_lacks_is_refused_by_name",
            )
        ),
        "e2e/test_launch_ways.py::test_backfill_of_all_partitions_is_one_run_and_green",
    ),
    "e2e/test_secrets.py::test_spark_in_the_run_s_process": "e2e/test_secrets.py::test_a_connect_server_of_ours",
    # What the engine does wrong, with frames in memory; a file of a refused commit is like others of it.
    "integration/test_arrow.py::test_a_writer_that_doubles_rows_is_found_out": (
        "unit/test_protocol_model.py::test_what_the_engine_does_wrong_is_not_published"
    ),
    "integration/test_arrow.py::test_a_batch_that_is_refused_leaves_no_file_in_any_snapshot": (
        "integration/test_continuous.py::test_a_refused_commit_fails_the_run_and_those_before_it_stay"
    ),
    "integration/test_ingest.py::test_what_was_fetched_beyond_a_batch_is_freed": (
        "integration/test_arrow.py::test_what_spark_keeps_of_a_batch_it_forgets_whether_the_commit_is_made_or_not"
    ),
    **dict.fromkeys(
        (
            f"integration/test_cli_query.py::test_the_code_on_the_table_s_page_runs_as_it_stands[{way}]"
            for way in ("DuckDB through PyIceberg", "Polars")
        ),
        "integration/test_cli_query.py::test_the_code_on_the_table_s_page_runs_as_it_stands",
    ),
    "integration/test_column_names.py::test_key_and_order_are_fields_whose_names_no_column_has": (
        "integration/test_column_names.py::test_keyed_table_has_columns_of_any_name"
    ),
    "integration/test_derived.py::test_a_run_in_dagster_tells_what_it_read_and_a_changed_query_stops_the_next": (
        "integration/test_derived_partitions.py::test_dagster_shows_the_days_and_materializes_one_or_a_range"
    ),
    "integration/test_derived_partitions.py::test_days_computed_at_once_beside_a_run_for_new_rows_are_right": (
        "integration/test_derived_partitions.py::test_dagster_shows_the_days_and_materializes_one_or_a_range"
    ),
    **dict.fromkeys(
        (
            "integration/test_keyed_rules.py::test_value_not_sent_after_a_refused_change_is_that_of_the_row",
            "integration/test_keyed_rules.py::test_refused_change_of_a_key_leaves_the_row_of_the_old_key",
        ),
        "integration/test_keyed_rules.py::test_refused_change_counts_as_if_it_had_not_come",
    ),
    # What the records of these sources say, one by one. A schema name leads to a table as other conditions do.
    "integration/test_keyed_mysql.py::test_what_one_record_cannot_do_is_a_dead_letter": (
        "unit/test_changes_mysql.py::test_what_is_no_change_of_canals_says_why"
    ),
    "integration/test_keyed_mysql.py::test_records_that_tell_no_key_stop_the_first_run[canal]": (
        "integration/test_keyed_mysql.py::test_records_that_tell_no_key_stop_the_first_run"
    ),
    "integration/test_routes_by_schema.py::test_each_value_goes_by_the_name_of_its_schema": (
        "integration/test_routes_by_schema.py::test_bytes_that_are_no_schema_ids_are_told_of"
    ),
    "integration/test_keyed.py::test_order_of_a_history_needs_a_new_table": (
        "integration/test_keyed.py::test_order_by_set_later_counts_from_then_on"
    ),
    "integration/test_keyed_avro.py::test_key_columns_that_rows_lack_are_those_of_the_records_key": (
        "integration/test_keyed_avro.py::test_debezium_in_avro_without_a_setting_but_its_name"
    ),
    "integration/test_keyed_truncate.py::test_without_an_order_across_partitions_the_run_stops_at_the_record": (
        "integration/test_keyed.py::test_a_key_of_two_partitions_without_an_order_stops_the_run"
    ),
    "integration/test_keyed_snapshot.py::test_several_partitions_are_refused": (
        "integration/test_keyed.py::test_a_key_of_two_partitions_without_an_order_stops_the_run"
    ),
    "integration/test_many_topics.py::test_tables_that_values_get_are_assets_once_they_are_refreshed": (
        "integration/test_many_topics.py::test_topics_that_match_get_tables_and_new_ones_are_told_of"
    ),
    "integration/test_row_expiry.py::test_columns_layouts_and_formats": (
        "integration/test_row_expiry.py::test_an_expiry_meets_a_commit_and_a_commit_meets_an_expiry"
    ),
    # What was reported of other tools, where a test of its own shows the same of this one.
    "integration/test_public_reports.py::test_aborted_and_open_transactions_are_never_rows": (
        "integration/test_ingest.py::test_aborted_records_stay_out_and_markers_at_the_tail_make_no_run_wait"
    ),
    "integration/test_public_reports.py::test_retention_that_took_unread_records_stops_the_run": (
        "integration/test_exactly_once.py::test_records_lost_to_retention_stop_the_run_and_are_named"
    ),
    "integration/test_public_reports.py::test_expired_snapshots_and_compaction_by_others_change_nothing": (
        "integration/test_exactly_once.py::test_a_compaction_between_two_runs"
    ),
    "integration/test_public_reports.py::test_null_passes_a_rule_and_a_broken_rule_is_listed_once": (
        "integration/test_rules.py::test_what_breaks_rules_is_one_dead_letter_each_and_all_others_are_rows"
    ),
    "integration/test_public_reports.py::test_values_of_another_type_are_dead_letters_once": (
        "integration/test_ingest.py::test_what_does_not_fit_is_a_dead_letter_with_bytes_and_reason"
    ),
    "integration/test_public_reports.py::test_debezium_changes_end_as_the_database": (
        "integration/test_keyed.py::test_the_table_is_what_the_database_is"
    ),
    "integration/test_public_reports.py::test_values_never_choose_a_table_outside_their_namespace": (
        "unit/test_routes_by_value.py::test_a_value_names_no_table_but_one_of_its_own"
    ),
    "integration/test_public_reports.py::test_fields_that_come_and_go_keep_their_columns": (
        "integration/test_ingest.py::test_inferred_columns_grow_with_the_records"
    ),
    # What a server keeps is what Spark keeps in this process; a signal at a later moment of the demo.
    "e2e/test_spark_memory.py::test_a_server_keeps_nothing_of_commits_that_are_made": (
        "integration/test_arrow.py::test_what_spark_keeps_of_a_batch_it_forgets_whether_the_commit_is_made_or_not"
    ),
    "e2e/test_spark_memory.py::"
    "test_what_a_process_left_that_was_killed_goes_when_the_next_one_takes_its_session_over": (
        "e2e/test_engine.py::test_what_a_killed_process_left_in_a_kept_session_ends_with_the_next"
    ),
    "e2e/test_demo.py::test_signal_leaves_no_process": (
        "e2e/test_demo.py::test_demo_fills_both_tables_and_stops_everything"
    ),
    # One more reason for new columns, of which the decision has its tests.
    "integration/test_evolution.py::test_or_get_a_column_beside_it": ("unit/test_evolution.py::test_whatever_comes"),
    "integration/test_evolution.py::test_narrow_columns_widen_when_a_record_needs_it": (
        "unit/test_evolution.py::test_whatever_comes"
    ),
    "integration/test_evolution.py::test_a_declared_schema_obeys_the_policy_too": (
        "integration/test_evolution.py::test_a_frozen_table_refuses_and_one_that_ignores_new_fields_says_so"
    ),
    "integration/test_evolution.py::test_a_column_that_somebody_drops_by_hand_stops_no_run_and_comes_back_with_the_records_"
    "that_have_it": (
        "integration/test_maintenance.py::test_a_column_renamed_by_hand_keeps_its_values_and_the_topics_gets_a_new_one"
    ),
    # The rows and dead letters of real runs show these too.
    "decode/test_decode.py::test_dead_letters_have_offset_and_time": (
        "integration/test_ingest.py::test_what_does_not_fit_is_a_dead_letter_with_bytes_and_reason"
    ),
    "decode/test_decode.py::test_rows_tell_which_topic_of_that_name": (
        "integration/test_exactly_once.py::test_a_recreated_topic_can_fill_the_same_table"
    ),
    "decode/test_decode.py::test_a_record_that_is_refused_twice_is_one_letter": (
        "decode/test_decode.py::test_what_a_transform_refuses_is_a_letter_with_its_reason"
    ),
    "decode/test_rules.py::test_unique_may_look_at_the_rows_of_earlier_commits": (
        "integration/test_rules.py::test_dead_letters_of_a_rule_are_replayed_once_it_is_relaxed"
    ),
    "decode/test_rules.py::test_a_replay_of_dead_letters_compares_with_the_rows_of_the_table": (
        "integration/test_rules.py::test_dead_letters_of_a_rule_are_replayed_once_it_is_relaxed"
    ),
    "integration/test_cli_schema.py::test_the_history_names_snapshot_and_offsets": (
        "integration/test_cli_schema.py::test_it_says_that_the_next_run_would_fail"
    ),
    "integration/test_routes_dagster.py::test_each_table_is_an_asset_with_its_own_rows_and_checks": (
        "unit/test_routes.py::test_each_table_is_an_asset_of_the_topics_run"
    ),
    "integration/test_dagster.py::test_a_run_that_goes_on_tells_in_a_tag_until_when": (
        "integration/test_dagster.py::test_a_continuous_run_shows_while_it_goes_on_and_what_lies_below_notices"
    ),
    "integration/test_dagster.py::test_one_check_alone": (
        "integration/test_dagster.py::test_the_checks_alone_look_at_the_published_table_without_spark"
    ),
    "integration/test_names_in_any_case.py::test_declared_columns_take_fields_in_another_case[False]": (
        "integration/test_names_in_any_case.py::test_declared_columns_take_fields_in_another_case"
    ),
    "unit/test_up_metrics.py::test_metrics_are_served_until_the_stack_ends": (
        "unit/test_metrics.py::test_without_brokers_the_process_says_so_shows_no_secret_and_ends_at_once"
    ),
}
"""Test, or one case of it, and the test of `make test` that shows in short what it proves."""


def exhaustive(*values: Any, id: str | None = None) -> Any:
    """Return the parameters of one more case, for `make exhaustive` alone.

    Another case of the same test, in `make test`, shows the promise; this one shows it once more in another form.

    Args:
        values: The values of the parameters, one for each name.
        id: The name of the case; pytest's own if None.
    """
    return pytest.param(*values, id=id, marks=pytest.mark.exhaustive)


def shown_in_short(node_id: str) -> bool:
    """Tell whether a test, by its whole name, is in the longer lane for another one that shows the same in short."""
    path = node_id.removeprefix("kafka_lake_tests/")
    return path in SHOWN_IN_SHORT or path.partition("[")[0] in SHOWN_IN_SHORT
