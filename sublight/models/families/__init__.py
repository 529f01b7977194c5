"""Families of architectures, one file each: from a config to layers. FAMILIES is a table that you can read."""

from __future__ import annotations

from collections.abc import Callable

from sublight.models.families.deepseek import deepseek
from sublight.models.families.deepseek_v4 import deepseek_v4
from sublight.models.families.gemma import gemma3, gemma4
from sublight.models.families.glm import glm4_moe
from sublight.models.families.gpt import gpt2, mpt
from sublight.models.families.gpt_oss import gpt_oss
from sublight.models.families.kimi import kimi_linear
from sublight.models.families.llama import llama, mimo_7b, qwen2, qwen3
from sublight.models.families.llama4 import llama4
from sublight.models.families.mimo import mimo_v2_flash
from sublight.models.families.minimax import minimax_m2, minimax_m3
from sublight.models.families.mixtral import mixtral
from sublight.models.families.nemotron import nemotron_h, nemotron_nas
from sublight.models.families.qwen_moe import qwen2_moe, qwen3_moe
from sublight.models.families.qwen_next import qwen_next
from sublight.models.families.source import Source
from sublight.models.families.step import step3p7
from sublight.models.model import Model

# By the name under "architectures".
FAMILIES: dict[str, Callable[[Source], Model]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": llama,
    "Mistral3ForConditionalGeneration": llama,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3VLForConditionalGeneration": qwen3,
    "MiMoForCausalLM": mimo_7b,
    "MixtralForCausalLM": mixtral,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "Qwen3VLMoeForConditionalGeneration": qwen3_moe,
    "Qwen3NextForCausalLM": qwen_next,
    "Qwen3_5ForConditionalGeneration": qwen_next,
    "Qwen3_5MoeForConditionalGeneration": qwen_next,
    "DeepseekV2ForCausalLM": deepseek,
    "DeepseekV3ForCausalLM": deepseek,
    "DeepseekV32ForCausalLM": deepseek,
    "DeepseekV4ForCausalLM": deepseek_v4,
    "KimiK25ForConditionalGeneration": deepseek,
    "KimiLinearForCausalLM": kimi_linear,
    "KimiK3ForConditionalGeneration": kimi_linear,
    "GlmMoeDsaForCausalLM": deepseek,
    "Glm4MoeForCausalLM": glm4_moe,
    "MiniMaxM2ForCausalLM": minimax_m2,
    "MiniMaxM3ForCausalLM": minimax_m3,
    "MiniMaxM3SparseForConditionalGeneration": minimax_m3,
    "GptOssForCausalLM": gpt_oss,
    "GPT2LMHeadModel": gpt2,
    "MPTForCausalLM": mpt,
    "Llama4ForCausalLM": llama4,
    "Llama4ForConditionalGeneration": llama4,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3,
    "Gemma4ForCausalLM": gemma4,
    "Gemma4ForConditionalGeneration": gemma4,
    "NemotronHForCausalLM": nemotron_h,
    "DeciLMForCausalLM": nemotron_nas,
    "MiMoV2FlashForCausalLM": mimo_v2_flash,
    "Step3p5ForCausalLM": step3p7,
    "Step3p7FlashForCausalLM": step3p7,
}

__all__ = ["FAMILIES", "Source"]
