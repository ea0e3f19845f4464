"""Cases that are in the slow tier because others have the same law at less cost.

A law of which all cases are here has the pattern `*`, and is in the slow tier alone.
"""

import fnmatch

import pytest

# By file and test, patterns of what stands in brackets behind its name.
SLOW: dict[str, dict[str, tuple[str, ...]]] = {
    "onepass/networks/test_any_length.py": {
        "test_a_rebuilt_network_is_the_network_and_has_a_step": (
            *("gpt", "reshaped", "sequential", "wavenet"),
        ),
    },
    "onepass/step/test_attention.py": {
        "test_step_equals_the_call_on_both_sides_of_a_horizon": (
            *("2-*", "1-mini_gpt", "1-explicit_mask", "1-triangular_mask", "1-sliding_window"),
            *("1-recurrent_and_attention", "1-Biased", "1-KeyBiased", "1-Sinusoidal", "1-Rotary"),
            *("1-WhereMasked", "1-OwnSoftmax", "1-TalkingHeads", "1-Turned", "1-MergedHeads"),
            *("1-BandWindow", "1-Retention", "1-Decayed", "1-Exclusive", "1-Attention"),
            *("1-Windowed", "1-Padded", "1-Relative", "1-Learned"),
            *("1-grouped_queries", "1-CrossShaped"),
        )
    },
    "onepass/networks/test_causality.py": {
        "test_what_the_graph_does_not_settle_the_outputs_do": ("unrolled-",),
        "test_a_large_vocabulary_is_compared_on_so_many_steps_that_memory_is_bounded": (
            "20000-True",
        ),
    },
    "onepass/step/test_channels.py": {
        "test_rows_of_different_lengths_are_trained_on": ("attention of channels", "codes")
    },
    "onepass/training/test_fit.py": {
        "test_weights_in_float64_are_trained_and_in_float16_refused_in_one_line": ("Adam",),
    },
    "onepass/step/test_incremental.py": {
        "test_step_equals_the_call": (
            *("2-[!P]*", "1-dilated_functional", "1-sequential", "1-gru", "1-two_inputs"),
            *("1-lstm_after_convolution", "1-embedding", "1-Padded", "1-stacked_cells"),
        ),
        "test_a_scan_reads_rows_that_are_equal_at_all_times": ("ones", "second"),
        "test_entries_are_chosen_placed_and_turned_in_every_time_step": (
            *("of_every_time", "loop_over_rows"),
        ),
    },
    "serving/test_export.py": {
        "test_a_bundle_with_other_weights_is_refused_and_older_versions_are_left": (
            *("pairs", "voices"),
        ),
        "test_a_network_of_conditions_that_are_not_negative_is_exported": ("sqrt", "<lambda>"),
        "test_log_probabilities_of_a_network_that_loops_over_time_are_those_of_the_model": ("*",),
    },
    "serving/test_served_weights.py": {
        "test_every_sequence_draws_and_streams_what_the_live_model_does": ("reading", "voices"),
        "test_a_model_that_cannot_is_refused_in_one_line_when_it_is_loaded": ("student of frames",),
    },
    "onepass/machine/test_machine.py": {
        "test_threads_that_divide_products_draw_what_one_draws_to_the_last_bit": (
            *("two_attentions-2-1*", "wide_convolutions-3-*"),
        ),
        "test_a_function_is_accurate": (
            *("Copy", "Sub", "Maximum", "Minimum", "SquaredDifference", "Greater", "GreaterEqual"),
            *("LessEqual", "NotEqual", "LogicalAnd", "LogicalOr", "LogicalNot", "Neg", "Sign"),
            *("Square", "Reciprocal", "Ceil", "Trunc", "Rint", "Relu6", "Softsign", "Elu"),
        ),
        "test_the_draw_is_that_of_the_distribution_at_the_temperature_of_every_row": (
            *("gaussian", "gaussians"),
        ),
    },
    "onepass/networks/test_reading.py": {
        "test_the_network_reads_the_start_before_the_first_symbol": ("0",),
        "test_the_network_reads_numbers_on_its_scale": ("integers",),
    },
    "onepass/step/test_rates.py": {
        "test_every_method_draws_the_same_at_any_length": ("tiers",),
        "test_parts_of_any_length_give_the_whole_also_those_of_the_step_machine": (
            *("every second row", "frames to samples", "a stride of three", "tiers of tiers"),
            *("a transposed convolution", "one between two levels"),
        ),
    },
    "onepass/step/test_rules.py": {"test_the_step_of_a_rule_equals_the_call": ("1", "2")},
    "onepass/networks/test_tables.py": {
        "test_every_method_names_the_table_and_takes_its_length": ("*-30",)
    },
    "onepass/networks/test_trainable.py": {
        "test_a_frozen_layer_is_found_wherever_it_is_held": ("constructor-[!m]*",),
    },
    "onepass/samplers/test_fixed_point.py": {
        "test_a_window_of_too_few_rows_changes_no_pixel": ("1",),
    },
    "onepass/networks/torch_networks/test_networks.py": {
        "test_a_network_of_tokens_is_converted_and_has_a_step": (
            "gru, *",
            "lstm",
            "rnn",
            "encoder",
        ),
    },
    "onepass/compression/test_files.py": {
        "test_a_file_of_an_earlier_program_gives_its_elements": (
            *("pixelcnn-tolerance-0-*", "sound-tolerance-1e-3-*", "maps-1"),
            *("conditioned-2", "normals-1", "table-1", "grey-1", "logistics-1"),
            *("logistics-tolerance-*", "softmax-arrays-1", "cumulative-1", "speakers-3"),
            "gaussian-3",
        ),
        "test_a_file_is_written_as_it_was": (
            *("pixelcnn-tolerance-0", "sound-tolerance-1e-3", "captions", "maps", "softmax"),
            *("colour", "conditioned", "logistics-tolerance-*", "sound-tolerance-0"),
        ),
    },
    "onepass/compression/test_margins.py": {
        "test_no_corner_of_the_outputs_moves_odds_by_more_than_their_margin": (
            *("*-256", "GaussianMixture-*", "one logistic-100"),
        ),
        "test_streams_decode_at_every_tolerance": ("*-0.0001",),
        "test_no_corner_of_logits_moves_odds_by_more_than_their_margin": ("0.0001", "0.5"),
    },
    "benchmarks/test_audio_benchmark.py": {
        "test_the_plain_loop_draws_the_levels_of_the_sampler": ("4x64-*",),
    },
    "benchmarks/test_image_benchmark.py": {
        "test_a_stopped_naive_sampler_draws_the_first_pixels_and_no_more": ("False",),
    },
    "distill/images/test_guided_distillation.py": {
        "test_a_student_that_equals_its_teacher_is_at_no_distance": (
            *("logistic-B", "softmax-A", "softmax-pixelcnn"),
        ),
        "test_the_distance_is_the_sum_over_guided_tables": ("A",),
    },
    "distill/test_shipped_student.py": {
        "test_copy_synthesis_has_the_level_of_the_recording": ("shipped-[-0-9]*", "*-14.0"),
    },
    "distill/images/test_flow_distillation.py": {
        "test_a_flow_is_joined_with_newer_parts_in_place_of_its_teachers": ("False",)
    },
    "onepass/likelihoods/test_distributions.py": {
        "test_a_compiler_changes_nothing": ("gaussian", "* mixture, real"),
        "test_samples_are_as_frequent_as_log_prob_says": ("by sample-*",),
    },
    "onepass/likelihoods/test_likelihoods.py": {
        "test_probabilities_sum_to_one_at_every_scale_and_mean": ("GaussianMixture-65536",),
        "test_log_prob_agrees_with_float64": ("GaussianMixture-65536",),
        "test_values_and_gradients_are_finite_everywhere": ("GaussianMixture-65536",),
        "test_log_prob_and_sample_compile_to_portable_operations": ("GaussianMixture",),
    },
    "onepass/likelihoods/test_noise.py": {
        "test_rows_with_seeds_and_starts_of_their_own_are_the_same_one_by_one": (
            *("uniform-*", "logistic-*", "normal-False"),
        ),
        "test_a_compiler_does_not_change_a_bit": ("uniform",),
    },
    "onepass/test_array_compression.py": {
        "test_any_levels_are_kept_however_improbable": ("normal*", "cumulative"),
    },
    "onepass/planning/test_pipeline_execution.py": {
        "test_a_schedule_gives_the_gradients_and_holds_what_was_simulated": ("v-half",),
    },
    "onepass/replicator/test_counted_loops.py": {
        "test_the_length_of_every_loop_is_known": ("cached", "image, naive"),
    },
    "onepass/bundles/test_own_prompts.py": {
        "test_a_bundle_streams_what_it_draws_and_ends_early": ("prefix*",),
    },
    "onepass/bundles/test_export_audio.py": {
        "test_auto_takes_the_engine_for_students_in_float32": ("*",),
    },
    "onepass/bundles/test_own_agreement.py": {
        "test_a_bundle_draws_what_the_model_draws_and_gives_its_log_probabilities": (
            *("attention-all", "real-*", "voices-*", "tiles-*", "conditioned-prefix", "picture-"),
            *("tokens-bias", "tokens-allowed", "tokens-presence", "tokens-repetition"),
        ),
        "test_a_row_depends_on_its_own_condition_alone_and_one_may_stand_for_all": ("voices",),
        "test_a_bundle_refuses_conditions_in_the_words_of_the_model": ("voices",),
    },
    "wavenet/samplers/test_on_machine.py": {
        "test_not_a_number_is_generated_as_silence_not_as_a_crash": ("mixture",),
        "test_a_row_is_the_same_in_any_batch": ("*-2", "*-8"),
        "test_draws_are_those_of_the_likelihood": ("*-0.7",),
    },
    "wavenet/samplers/test_sampler.py": {
        "test_steps_give_the_conditionals_of_the_whole_network": ("mixture, *", "softmax, *"),
    },
    "wavenet/test_autoregression.py": {
        "test_a_sound_is_that_of_the_model_of_arrays_to_the_bit": ("softmax, speakers",),
        "test_log_probabilities_are_those_of_the_density": ("mixture, context",),
    },
    "wavenet/test_network.py": {
        "test_log_prob_in_windows_equals_log_prob_of_the_whole": ("mixture",),
        "test_reader_learns_f0_and_voicing_of_synthetic_frames": ("60",),
    },
    "wavenet/test_sound_compression.py": {
        "test_recordings_come_back_exactly_although_outputs_are_off": ("mixture, windows",),
    },
}


def listed(item: pytest.Item) -> tuple[str, str, str] | None:
    """Return the entry of SLOW for a test, as (file, test, pattern), or None."""
    name, _, case = item.name.partition("[")
    for file, tests in SLOW.items():
        if item.path.as_posix().endswith(f"/tests/{file}"):
            for pattern in tests.get(name, ()):
                if fnmatch.fnmatchcase(case.removesuffix("]"), pattern):
                    return file, name, pattern
    return None


def unknown(found: set[tuple[str, str, str]], files: set[str]) -> list[str]:
    """Return the entries of files whose tests were all collected that are no test's name.

    Args:
      found: entries that `listed` has returned.
      files: names of files as in SLOW.
    """
    entries = {
        (file, name, pattern)
        for file, tests in SLOW.items()
        for name, patterns in tests.items()
        for pattern in patterns
        if file in files
    }
    return sorted("{}::{}[{}]".format(*entry) for entry in entries - found)
