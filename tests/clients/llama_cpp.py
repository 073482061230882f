"""llama.cpp's server with a model made for tests, until it is ended. Says where it listens.

Arguments: the file that the model is written to, the tokens of its context, and `jinja` or `plain`.

The model has a vocabulary of bytes and of a few pieces. After a piece it says what SCRIPT has for it, so that it
thinks, calls a tool and sums up; after anything else it talks gibberish, and never ends by itself.
"""

import sys
import threading

import gguf
import numpy
import xllamacpp

THOUGHT, SAID, SUMMED_UP = "I see a heron.", "Let me look.", "It is late."
CALL = '{"name": "clock", "arguments": {}}'
END = "</s>"

SCRIPT = {
    "<think>\n": THOUGHT,
    THOUGHT: "\n</think>\n\n",
    "\n</think>\n\n": SAID,
    SAID: "\n<tool_call>\n",
    "\n<tool_call>\n": CALL,
    CALL: "\n</tool_call>",
    "\n</tool_call>": END,
    "<results>": SUMMED_UP,
    SUMMED_UP: END,
}

# Who asks for gibberish gets it.
TEMPLATE = r"""
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' and m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}
{{- m.content or '' }}
{%- for t in m.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + t.function.name + '", "arguments": ' + (t.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if messages[-1].role == 'tool' %}{{ '<results>' }}
{%- elif 'gibberish' not in messages[-1].content %}{{ '<think>\n' }}{% endif %}
{%- endif %}
"""

# The first dimensions say which piece came; the last one that it was none.
DIM, SCRIPTED, OTHER = 64, 16, 63


def write(path):
    normal, unknown, control, own, byte = 1, 2, 3, 4, 6
    tokens = [("<unk>", unknown), ("<s>", control), (END, control)]
    tokens += [(f"<0x{b:02X}>", byte) for b in range(256)]
    tokens += [("\u2581", normal)] + [(chr(c), normal) for c in range(33, 127)]
    tokens += [(piece, own) for piece in SCRIPT]
    at = {token: i for i, (token, _) in enumerate(tokens)}

    random = numpy.random.default_rng(7)
    read = random.standard_normal((len(tokens), DIM)).astype(numpy.float32)
    said = (random.standard_normal((len(tokens), DIM)) / 10).astype(numpy.float32)
    read[:, :SCRIPTED], said[:, :SCRIPTED] = 0, 0
    read[:, OTHER], said[:, OTHER] = 1, 0
    for token in [END, *SCRIPT]:
        said[at[token], OTHER] = -20
    for i, (piece, then) in enumerate(SCRIPT.items()):
        read[at[piece]] = numpy.eye(DIM, dtype=numpy.float32)[i]
        said[at[then], i] = 10

    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(4096)
    w.add_embedding_length(DIM)
    w.add_block_count(1)
    w.add_feed_forward_length(DIM)
    w.add_head_count(2)
    w.add_head_count_kv(2)
    w.add_rope_dimension_count(DIM // 2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("llama")
    w.add_token_list([token.encode() for token, _ in tokens])
    w.add_token_types([kind for _, kind in tokens])
    w.add_token_scores([0.0] * len(tokens))
    w.add_vocab_size(len(tokens))
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_space_prefix(False)
    w.add_tensor("token_embd.weight", read)
    w.add_tensor("output.weight", said)
    for norm in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"]:
        w.add_tensor(f"{norm}.weight", numpy.ones(DIM, numpy.float32))
    # Nothing but the last token counts.
    for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        w.add_tensor(f"blk.0.{part}.weight", numpy.zeros((DIM, DIM), numpy.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    path, context, templates = sys.argv[1:]
    write(path)
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = int(context)
    params.n_parallel = 1
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.use_jinja = templates == "jinja"
    params.chat_template = TEMPLATE
    params.endpoint_slots = True
    params.ctx_shift = True
    params.warmup = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


main()
