"""This file knows about the text of a config.json: what each key may hold, and which keys change no work.

The text is untrusted. Every key that is read is checked for its type and range; every key that nobody reads must be
one of those that change no work, or the config is refused: a model is never approximated in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sublight.errors import InputError

MOST = 10**9                             # no size of a layer is larger; products of sizes stay exact all the same
MOST_LAYERS = 4096

# Keys that change neither the operators nor their sizes: names, tokens, training, initialisation, generation,
# positions (rotary angles differ, their number does not), scores of the router, clamps of activations.
_NO_WORK = """
architectures model_type auto_map _name_or_path name_or_path transformers_version torch_dtype dtype use_cache
initializer_range initializer_factor attention_dropout hidden_dropout embd_pdrop attn_pdrop resid_pdrop
classifier_dropout max_position_embeddings rms_norm_eps norm_eps layer_norm_epsilon layer_norm_eps layernorm_epsilon
rope_theta rope_scaling rope_parameters rope_local_base_freq swa_rope_theta compress_rope_theta rope_interleave
indexer_rope_interleave pretraining_tp ep_size output_router_logits router_aux_loss_coef aux_loss_alpha seq_aux
router_jitter_noise norm_topk_prob scoring_func routed_scaling_factor topk_method n_group topk_group use_routing_bias
moe_router_dtype moe_router_activation_func moe_renormalize use_grouped_topk num_expert_group use_moe_router_bias
moe_router_scaling_factor moe_router_enable_expert_bias initial_context_length swiglu_limit swiglu_alpha swiglu_limits
swiglu_limits_shared activation_situ_beta activation_situ_linear_beta hc_eps attention_value_scale
query_pre_attn_scalar final_logit_softcapping attn_logit_softcapping attn_temperature_tuning attn_scale floor_scale
mrope_section use_mrope text_config vision_config audio_config quantization_config id2label label2id length_penalty
max_length min_length num_beams num_beam_groups num_return_sequences repetition_penalty return_dict
return_dict_in_generate temperature top_k top_p typical_p diversity_penalty early_stopping do_sample
no_repeat_ngram_size encoder_no_repeat_ngram_size output_attentions output_hidden_states output_scores problem_type
is_decoder chunk_size_feed_forward torchscript use_bfloat16 remove_invalid_values bad_words_ids begin_suppress_tokens
finetuning_task forced_bos_token_id forced_eos_token_id exponential_decay_length_penalty prefix sep_token_id
suppress_tokens task_specific_params tf_legacy_loss tokenizer_class decoder_start_token_id ignore_index
media_placeholder_token_id video_placeholder image_placeholder use_unified_vision_chunk image_token_index
video_token_index image_seq_length image_grid_pinpoints img_token_compression_config multimodal_projector_bias
projector_hidden_act projector_hidden_size process_image_mode vision_feature_layer vision_feature_select_strategy
num_reward_heads boi_token_index eoi_token_index eoa_token_index boa_token_index mm_tokens_per_image
vision_soft_tokens_per_image use_bidirectional_attention language_model_only rescale_prenorm_residual residual_in_fp32
num_logits_to_keep time_step_floor time_step_limit time_step_max time_step_min time_step_rank use_mamba_kernels
mamba_hidden_act chunk_size moe_shared_expert_overlap attention_probs_dropout_prob unsloth_version unsloth_fixed
max_window_layers cache_implementation max_seq_len seq_length gate_lower_bound rotary_dim partial_rotary_factor
partial_rotary_factors index_share_for_mtp_iteration initializer_std original_max_position_embeddings
"""
NO_WORK = frozenset(_NO_WORK.split())

Json = Mapping[str, Any]


class Fields:
    """One object of a config: typed reads that remember which keys were read. Absent and null are the same."""

    def __init__(self, values: object, where: str) -> None:
        if not isinstance(values, Mapping):
            raise InputError(f"{where}: expected an object of keys, got {_shown(values)}")
        self.values: Json = values
        self.where = where
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def raw(self, key: str) -> Any:
        """The value as it stands, None where absent."""
        self._read.add(key)
        return self.values.get(key)

    def wrong(self, key: str, expected: str) -> InputError:
        return InputError(f"{self.where}: '{key}' expected {expected}, got {_shown(self.values.get(key))}")

    def optional(self, *keys: str, least: int = 1, most: int = MOST) -> int | None:
        """The integer under any of these keys, which are names of one thing.

        Raises InputError for another type or range, and for two keys that say different things.
        """
        found: dict[int, str] = {}
        for key in keys:
            value = self.raw(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise self.wrong(key, f"an integer from {least} to {most}")
            found.setdefault(value, key)
        if len(found) > 1:
            said = " and ".join(f"'{key}' = {value}" for value, key in found.items())
            raise InputError(f"{self.where}: {said} are names of one thing and differ")
        return next(iter(found), None)

    def integer(self, *keys: str, least: int = 1, most: int = MOST) -> int:
        value = self.optional(*keys, least=least, most=most)
        if value is None:
            raise InputError(f"{self.where}: '{keys[0]}' is missing, an integer from {least} to {most} is needed")
        return value

    def count(self, *keys: str) -> int:
        """As optional, zero where absent."""
        return self.optional(*keys, least=0) or 0

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def listed(self, key: str, length: int, kinds: type | tuple[type, ...]) -> list[Any] | None:
        """A list with an entry for each layer (more, for layers that predict further tokens, are cut off)."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length or not all(isinstance(v, kinds) for v in value):
            names = kinds.__name__ if isinstance(kinds, type) else " or ".join(k.__name__ for k in kinds)
            raise self.wrong(key, f"a list of {length} entries of type {names}, one for each layer")
        return value

    def part(self, key: str) -> Fields:
        """The object under a key."""
        return Fields(self.raw(key), f"{self.where}: '{key}'")

    def must(self, key: str, *allowed: object) -> None:
        """Refuses other values of a key than those whose work we know. Absent is allowed."""
        value = self.raw(key)
        if value is not None and value not in allowed:
            shown = " or ".join(map(repr, allowed)) or "none"
            raise InputError(f"{self.where}: '{key}' is {_shown(value)}, whose work is not known; known: {shown}")

    def layers(self, *keys: str) -> int:
        return self.integer(*(keys or ("num_hidden_layers",)), most=MOST_LAYERS)

    def nothing_left(self, no_work: frozenset[str] = NO_WORK) -> None:
        """Refuses keys that nobody read, unless they are empty or change no work."""
        left = sorted(key for key, value in self.values.items()
                      if key not in self._read and key not in no_work and not _idle(key, value))
        if left:
            shown = ", ".join(f"'{key}' = {_shown(self.values[key])}" for key in left[:5])
            raise InputError(f"{self.where}: {shown} may change the work and nothing here reads it; remove it if it "
                             "does not, or report the model")


def _idle(key: str, value: object) -> bool:
    return value is None or value is False or value in ([], {}, "") or \
        key.startswith("_") or key.endswith(("_token_id", "_token", "_token_ids", "_loss_coef", "_dropout"))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def head_width(fields: Fields, width: int, heads: int) -> int:
    """head_dim, or what the heads share of the width."""
    found = fields.optional("head_dim", "attention_head_dim")
    if found is not None:
        return found
    if width % heads:
        raise InputError(f"{fields.where}: 'head_dim' is missing and {heads} heads do not divide a width of {width}")
    return width // heads


def kinds(fields: Fields, key: str, names: Mapping[str, str], length: int) -> Sequence[str] | None:
    """A list of names by layer, each translated; refuses names that are not known."""
    values = fields.listed(key, length, str)
    if values is None:
        return None
    unknown = sorted(set(values) - names.keys())
    if unknown:
        raise InputError(f"{fields.where}: '{key}' holds {', '.join(unknown[:3])}; known: {', '.join(names)}")
    return [names[value] for value in values]
