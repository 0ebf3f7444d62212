"""The rows of one transformer layer on one rank: forward and backward, as a stack's kernels run them.

Shapes: T tokens of the micro-batch on this rank, Ts tokens of the sequence-parallel shard, H hidden, F ffn,
A query heads, K kv heads, D head dim; a suffix ``/t`` is divided by the tensor-parallel degree.

A matmul [T, K] x [K, N] costs 2 T K N FLOP forward; its backward is two more of the same size: input gradient
[T, N] x [N, K] and weight gradient [N, T] x [T, K]. Norms, activations, residuals and copies count bytes only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.workload.adapters import carries
from gpuwise.workload.attention_flop import attention_pairs
from gpuwise.workload.blocks.point import NF4_BYTES_PER_PARAMETER, QUANTIZED, SCALE_BYTES_PER_ELEMENT, Point
from gpuwise.workload.row_codes import BWD, CAUSAL, DROPOUT, FUSED_ATTENTION, FUSED_SOFTMAX, FWD, Kind, Phase
from gpuwise.workload.step import OpTableBuilder

EIGHT_BITS = ("fp8", "mxfp8")
EAGER_NORM_KERNELS = 6
"""cast, pow, mean, rsqrt (with eps), mul, mul and cast of an eager RMSNorm (transformers LlamaRMSNorm.forward)."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Writes rows of one layer at one :class:`Point`."""

    to: OpTableBuilder
    point: Point

    def linear(
        self,
        name: str,
        tokens: int,
        k: int,
        n: int,
        *,
        trainable: bool = True,
        saves_input: bool = True,
        saved_tokens: int | None = None,
        bias: bool = False,
        parts: tuple[tuple[str, int], ...] = (),
    ) -> None:
        """A linear layer [tokens, k] x [k, n] with its two backward products (and adapters, and casts to 8 or 4 bits).

        ``saves_input``: save the input for the weight gradient (unless another row already saves it); ``saved_tokens``: number
        of saved rows, if not all (a column-parallel linear saves its sequence shard and gathers again). Adapters save it for
        their own gradient. ``parts``: names and widths of the matrices in the product (by default one, the last word of
        ``name``); under autocast each saves its own cast of the input, and of its weight.
        """
        p = self.point
        parts = parts or ((name.rpartition(".")[2], n),)
        e, w = p.element_bytes, FORMAT_BYTES[p.precision] + SCALE_BYTES_PER_ELEMENT.get(p.precision, 0.0)
        frozen = p.lora_rank > 0 or not trainable
        flop = 2.0 * tokens * k * n
        input_bytes = 4.0 * tokens * k if p.quantized_base and p.stack.quantized_keeps_input else 0.0
        n_saved = tokens if saved_tokens is None else saved_tokens
        saved = n_saved * k * (w if p.precision in QUANTIZED else e) if saves_input and not frozen else 0.0
        if p.autocast:
            # a compiler casts an input once for all that read it; the gradient of the input needs the cast of the weight
            saved = saved * (1 if p.stack.compiled else len(parts)) + k * n * e
        if p.quantized_base:
            self._dequantize(name, k * n)
        self.quantize(name, FWD, tokens, k, n, frozen)
        self.to.add(
            name,
            Kind.MATMUL,
            FWD,
            p.precision,
            (1, tokens, n, k),
            flop=flop,
            read_bytes=tokens * k * w + k * n * w,
            written_bytes=tokens * n * e,
            saved=saved + input_bytes,
        )
        if p.quantized_base:
            self._dequantize(name, k * n, BWD)
        self.quantize(name, BWD, tokens, k, n, frozen)
        self.to.add(
            f"{name}.dgrad",
            Kind.MATMUL,
            BWD,
            p.precision,
            (1, tokens, k, n),
            flop=flop,
            read_bytes=tokens * n * w + k * n * w,
            written_bytes=tokens * k * e,
        )
        if not frozen:
            self._wgrad(name, tokens, k, n)
        if bias and not frozen:  # the forward adds it in the product's epilogue (cuBLASLt) or a fused kernel behind it
            self.to.add(f"{name}.bias_grad", Kind.MEMORY, BWD, p.dtype, read_bytes=tokens * n * e, written_bytes=n * e)
        if p.lora_rank:
            self._adapters(name, tokens, k, parts, n_saved if saves_input else 0)

    def _wgrad(self, name: str, tokens: int, k: int, n: int) -> None:
        p = self.point
        w = FORMAT_BYTES[p.precision]
        out = 8.0 if p.stack.fused_wgrad else p.element_bytes
        self.to.add(
            f"{name}.wgrad",
            Kind.MATMUL,
            BWD,
            p.precision,
            (1, n, k, tokens),
            flop=2.0 * tokens * k * n,
            read_bytes=tokens * (k + n) * w,
            written_bytes=k * n * out,
        )

    def _adapters(self, name: str, tokens: int, k: int, parts: tuple[tuple[str, int], ...], kept: int) -> None:
        """Those of the matrices of one product; Megatron's fused projections have one adapter together."""
        p = self.point
        widths = [width for part, width in parts if carries(p.lora_targets, part)]
        if widths and p.stack.fused_wgrad:
            widths = [sum(width for _, width in parts)]
        # eager PyTorch casts the input for each adapter, and each keeps its own; elsewhere they share one
        apart = p.stack.per_op and not p.stack.compiled and p.dtype in ("bf16", "fp16")
        for i, width in enumerate(widths):
            self._adapter(name, tokens, k, width, tokens if apart else 0 if i else kept)

    def _adapter(self, name: str, tokens: int, k: int, n: int, kept: int) -> None:
        """Low-rank adapter: [tokens, k] x [k, r] x [r, n] added to the frozen product (arXiv 2106.09685); ``kept`` is the
        number of input rows saved here."""
        p, r = self.point, self.point.lora_rank
        e = p.element_bytes
        for part, rows_in, rows_out, saved in (("lora_a", k, r, kept), ("lora_b", r, n, tokens)):
            flop = 2.0 * tokens * rows_in * rows_out
            self.to.add(
                f"{name}.{part}",
                Kind.MATMUL,
                FWD,
                p.dtype,
                (1, tokens, rows_out, rows_in),
                flop=flop,
                read_bytes=(tokens + rows_out) * rows_in * e,
                written_bytes=tokens * rows_out * e,
                saved=saved * rows_in * e,
            )
            self.to.add(
                f"{name}.{part}.dgrad",
                Kind.MATMUL,
                BWD,
                p.dtype,
                (1, tokens, rows_in, rows_out),
                flop=flop,
                read_bytes=(tokens + rows_in) * rows_out * e,
                written_bytes=tokens * rows_in * e,
            )
            self.to.add(
                f"{name}.{part}.wgrad",
                Kind.MATMUL,
                BWD,
                p.dtype,
                (1, rows_out, rows_in, tokens),
                flop=flop,
                read_bytes=tokens * (rows_in + rows_out) * e,
                written_bytes=rows_in * rows_out * e,
            )
        # scaled, then added; a compiler does both at once. Backward: the scale, and the sum of the two input gradients; the sum
        # of adapter and base has no operation of its own
        passes = 1 if p.stack.compiled else 2
        elements = float(tokens * n)
        read_bytes, written_bytes = (passes + 1) * elements, passes * elements
        self.to.add(
            f"{name}.lora_add",
            Kind.MEMORY,
            FWD,
            p.dtype,
            read_bytes=read_bytes * e,
            written_bytes=written_bytes * e,
            n_kernels=passes,
        )
        read_bytes, written_bytes = elements + 2.0 * tokens * k, elements + tokens * k
        self.to.add(
            f"{name}.lora_add.backward",
            Kind.MEMORY,
            BWD,
            p.dtype,
            read_bytes=read_bytes * e,
            written_bytes=written_bytes * e,
            n_kernels=2,
        )

    def _dequantize(self, name: str, parameters: float, phase: Phase = FWD) -> None:
        p = self.point
        self.to.add(
            f"{name}.dequantize",
            Kind.MEMORY,
            phase,
            p.dtype,
            read_bytes=parameters * NF4_BYTES_PER_PARAMETER,
            written_bytes=parameters * p.element_bytes,
        )

    def quantize(self, name: str, phase: Phase, tokens: int, k: int, n: int, frozen: bool) -> None:
        """Casts of a product's input (forward: of the layer's input, backward: of its output's gradient) to 8 bits.

        Transformer Engine's cast_transpose reads once and writes both layouts. torchao's casts find the largest value first
        and write each layout separately; with a scale per row the weights are cast every time, and the backward casts the
        layer's input once more. The cast to 4 bits is inside the measured times of its products.
        """
        p = self.point
        if p.precision not in EIGHT_BITS:
            return
        e, w = p.element_bytes, FORMAT_BYTES[p.precision] + SCALE_BYTES_PER_ELEMENT.get(p.precision, 0.0)
        elements = float(tokens * (k if phase is FWD else n))
        copies = 1 if frozen else 2  # the transposed one is the weight gradient's
        read_bytes, written_bytes, kernels = elements * e, copies * elements * w, 1.0
        if p.row_scales:
            cast = elements + k * n + (elements + tokens * k if phase is BWD else 0.0)
            read_bytes, written_bytes, kernels = 2 * cast * e, cast * w, 4.0
        elif not p.stack.fused_cast:
            read_bytes, kernels = elements * (2 * e + w), 3.0
        self.to.add(
            f"{name}.quantize", Kind.MEMORY, phase, p.dtype, read_bytes=read_bytes, written_bytes=written_bytes, n_kernels=kernels
        )

    def memory(
        self,
        name: str,
        elements_read: float,
        elements_written: float,
        *,
        saved: float = 0.0,
        n_kernels: float = 1.0,
        backward_read: float | None = None,
        backward_written: float | None = None,
        passes: float = 1.0,
    ) -> None:
        """A bandwidth-bound operation; by default its backward reads and writes what the forward did, and the output's
        gradient besides. ``passes`` multiplies the traffic of an unfused chain; ``saved`` is in elements."""
        p = self.point
        e = p.element_bytes
        self.to.add(
            name,
            Kind.MEMORY,
            FWD,
            p.dtype,
            read_bytes=passes * elements_read * e,
            written_bytes=passes * elements_written * e,
            saved=saved * e,
            n_kernels=n_kernels,
        )
        read_elements = elements_read + elements_written if backward_read is None else backward_read
        written_elements = elements_read if backward_written is None else backward_written
        self.to.add(
            f"{name}.backward",
            Kind.MEMORY,
            BWD,
            p.dtype,
            read_bytes=passes * read_elements * e,
            written_bytes=passes * written_elements * e,
            n_kernels=1.0 if n_kernels == 1.0 else 1.5 * n_kernels,
        )

    def collective(self, name: str, payload_bytes: float, phase: Phase, *, copies: int = 0, reachable: float = 1.0) -> None:
        """``name`` is ``group.operation[.where]``: ``tp.all_gather.attention``.

        ``copies``: of each token in the payload, where those to one system or rank are sent once; ``reachable``: share of
        the systems that a token's copies may go to (in millionths in the row).
        """
        self.to.add(name, Kind.COLLECTIVE, phase, self.point.dtype, (int(payload_bytes), copies, round(1e6 * reachable)))

    def norm(self, name: str, tokens: int, width: int, *, kind: str = "rms", fp32: bool = False) -> None:
        """RMS or layer norm over [tokens, width].

        A fused kernel saves its input and fp32 statistics (one a token for rms, two for layer norm); torch's layer norm
        is one such kernel in every stack, which autocast runs in fp32. The eager RMSNorm chain saves its input in fp32,
        and where its weight is trained the normalised values, in fp32 under autocast and where the weight is multiplied
        in it (``fp32``; transformers LlamaRMSNorm.forward, Gemma3RMSNorm.forward).
        """
        p = self.point
        elements = float(tokens * width)
        if p.stack.fused_norm:
            statistics = tokens * (1 if kind == "rms" else 2) * 4 / p.element_bytes
            self.memory(
                name, elements, elements, saved=elements + statistics, backward_read=2 * elements, backward_written=elements
            )
        else:
            if kind != "rms":
                factor = p.stream_bytes / p.element_bytes
            else:
                normalised = 4 / p.element_bytes if fp32 or p.autocast else 1.0
                factor = 4 / p.element_bytes + (0.0 if p.lora_rank else normalised)
            chain = kind == "rms"
            self.memory(
                name,
                elements,
                elements,
                saved=factor * elements,
                n_kernels=EAGER_NORM_KERNELS if chain else 1.0,
                passes=3.0 if chain else 1.0,
                backward_read=2 * elements,
                backward_written=elements,
            )

    def residual(self, name: str, tokens: int, width: int) -> None:
        """x + f(x), with dropout when the stack has it on (one mask byte an element saved).

        The backward sums the gradients of both: autograd with a kernel that reads two and writes one, a compiler inside
        the kernel before it.
        """
        p = self.point
        elements = float(tokens * width)
        mask = 1 / p.element_bytes if p.stack.dropout else 0.0
        fused = p.stack.fused_bias_dropout_add or not p.stack.dropout
        summed = (1.0, 0.0) if p.stack.residual_in_kernel else (2.0, 1.0)
        self.memory(
            name,
            (2 + mask) * elements,
            elements,
            saved=mask * elements,
            n_kernels=1.0 if fused else 2.0,
            passes=1.0 if fused else 1.7,
            backward_read=((1 + mask) * elements if mask else 0.0) + summed[0] * elements,
            backward_written=(elements if mask else 0.0) + summed[1] * elements,
        )

    def enter(self, where: str, width: int) -> None:
        """Into a column-parallel linear: gather the sequence shards (forward), and again for the weight gradient."""
        p = self.point
        if p.tp == 1:
            return
        payload = p.tokens * width * p.element_bytes
        if p.sequence_parallel:
            # the head is no 8- or 4-bit product
            gathered = p.tokens * width * (p.element_bytes if where == "head" else p.gathered_bytes())
            self.collective(f"tp.all_gather.{where}", gathered, FWD)
            self.collective(f"tp.all_gather.{where}.wgrad", gathered, BWD)
            self.collective(f"tp.reduce_scatter.{where}.dgrad", payload, BWD)
        else:
            self.collective(f"tp.all_reduce.{where}.dgrad", payload, BWD)

    def leave(self, where: str, width: int) -> None:
        """Out of a row-parallel linear: reduce partial sums (and scatter the sequence); the backward gathers."""
        p = self.point
        if p.tp == 1:
            return
        payload = p.tokens * width * p.element_bytes
        if p.sequence_parallel:
            self.collective(f"tp.reduce_scatter.{where}", payload, FWD)
            self.collective(f"tp.all_gather.{where}.dgrad", p.tokens * width * p.gathered_bytes(gradient=True), BWD)
        else:
            self.collective(f"tp.all_reduce.{where}", payload, FWD)

    def attention_core(
        self,
        name: str,
        heads: int,
        kv_heads: int,
        head_dim: int,
        v_head_dim: int,
        *,
        causal: bool,
        window: int,
        kv_len: int | None = None,
    ) -> None:
        """softmax(q k' / sqrt(D)) v over this rank's heads. Unfused, the [A, Sq, Skv] scores go through memory.

        Causal FLOP count the visible half (and the window), so that model FLOP are what the model needs.
        """
        p = self.point
        e = p.element_bytes
        doc = None if p.packed_document_len is None else min(p.packed_document_len, p.seq_len)
        batch, seq = (p.micro_batch, p.seq_len) if doc is None else (p.micro_batch * max(1, p.seq_len // doc), doc)
        q_len = max(1, seq // p.cp)
        kv = seq if kv_len is None else kv_len
        pairs = float(attention_pairs(seq, kv, causal=causal, window=window)) / p.cp
        flop = 2.0 * batch * heads * pairs * (head_dim + v_head_dim)
        q, k = batch * q_len * heads * head_dim, batch * (kv / p.cp) * kv_heads * (head_dim + v_head_dim)
        out = batch * q_len * heads * v_head_dim
        flag = (CAUSAL if causal else 0) | (FUSED_ATTENTION if p.fused_attention else 0)
        shape = (batch, q_len, kv, heads, kv_heads, head_dim, v_head_dim)
        masked = p.stack.masks_windows and 0 < window < seq
        repeated = 1 if p.stack.native_gqa and not masked else heads // kv_heads
        saved = (q + repeated * k + out) * e + 4.0 * batch * heads * q_len
        if masked:  # SDPA has no window: a mask of every pair is passed, and saved
            saved += batch * q_len * kv * e
        if p.cp > 1 and p.context_parallel == "ulysses":
            saved += out * e  # saved by heads for the core and by tokens for the output projection
        kernels_f, kernels_b = (1.0, 3.0) if p.fused_attention else (3.0, 6.0)
        if not p.fused_attention:
            # scores in, probabilities out; with dropout the dropped copy and its mask are saved as well
            scores = batch * heads * q_len * kv
            saved = (q + repeated * k) * e + scores * (2 * e + 1 if p.stack.dropout else e)
            if not p.stack.fused_softmax and e == 2:
                saved += scores * 4.0  # softmax in fp32 keeps its fp32 result besides the cast probabilities
            flag |= (FUSED_SOFTMAX if p.stack.fused_softmax else 0) | (DROPOUT if p.stack.dropout else 0)
            kernels_f = (3.0 if p.stack.fused_softmax else 6.0) + (1.0 if p.stack.dropout else 0.0)
            kernels_b = kernels_f + 2.0
        for phase, times, kernels in ((FWD, 1.0, kernels_f), (BWD, 2.0, kernels_b)):
            self.to.add(
                name if phase is FWD else f"{name}.backward",
                Kind.ATTENTION,
                phase,
                p.dtype,
                shape,
                flop=times * flop,
                read_bytes=times * (q + k) * e,
                written_bytes=times * out * e,
                saved=saved if phase is FWD else 0.0,
                flag=flag,
                window=window,
                n_kernels=kernels,
            )
        if p.stack.layout_copies:
            n = p.stack.layout_copies * (q + 2 * k + out)
            self.memory(f"{name}.layout", n, n, n_kernels=4.0 * p.stack.layout_copies, backward_read=n, backward_written=n)

    def in_half_precision(self) -> Rows:
        """Rows of the head, which stays in bf16 under 8- and 4-bit recipes, and has no adapter."""
        p = self.point
        precision = p.dtype if p.precision != "tf32" else "tf32"
        return Rows(self.to, replace(p, precision=precision, lora_rank=0, quantized_base=False))
