//! The forward pass: from tokens to the loss.

use super::*;

impl Emitter<'_> {
    /// Adds what is still to be added and normalises. Returns (normed, rstd).
    fn add_norm(
        &mut self,
        section: Section,
        stream: &Stream,
        sum: Option<BufferId>,
        weight: BufferId,
        name: &str,
    ) -> (BufferId, BufferId) {
        let Stream { x, branches } = *stream;
        let out = self.activation(format!("{name}.out"), self.config.hidden_size);
        let rstd = self.statistic(format!("{name}.rstd"), 1);
        let eps = self.config.norm_eps;
        self.b.push(
            section,
            AddRmsNorm {
                x,
                branches,
                sum,
                weight,
                out,
                rstd,
                eps,
            },
        );
        (out, rstd)
    }

    /// [`Self::add_norm`] that keeps the sum, if there is one. Returns (stream, normed, rstd).
    fn keep_norm(
        &mut self,
        section: Section,
        stream: &Stream,
        weight: BufferId,
        name: &str,
    ) -> (BufferId, BufferId, BufferId) {
        let added = stream.branches[0].is_some();
        let sum = added.then(|| self.residual(format!("{name}.sum")));
        let (out, rstd) = self.add_norm(section, stream, sum, weight, name);
        (sum.unwrap_or(stream.x), out, rstd)
    }

    /// From the tokens to the final norm.
    pub(super) fn forward(
        &mut self,
        section: Section,
        prefix: &str,
        hidden_states: &mut Vec<(String, BufferId)>,
    ) -> (Vec<Saved>, Last) {
        let x = self.residual(format!("{prefix}embeddings"));
        let (tokens, table) = (self.tokens, self.embeddings.value);
        self.b.push(
            section,
            Embedding {
                tokens,
                table,
                out: x,
            },
        );
        hidden_states.push(("embeddings".to_owned(), x));
        let mut stream = Stream {
            x,
            branches: [None; 2],
        };
        let mut saved = Vec::new();
        for i in 0..self.blocks.len() {
            if section == Section::Forward {
                self.b.start_block();
            }
            let (block, next) = self.block(section, prefix, i, &stream);
            if i > 0 {
                hidden_states.push((format!("layers.{}", i - 1), block.attn_input));
            }
            stream = next;
            saved.push(block);
        }
        if section == Section::Forward {
            self.b.end_blocks();
        }
        let name = format!("{prefix}norm");
        let (input, normed, rstd) = self.keep_norm(section, &stream, self.norm.value, &name);
        hidden_states.push((format!("layers.{}", self.blocks.len() - 1), input));
        hidden_states.push(("norm".to_owned(), normed));
        (saved, Last { input, rstd, normed })
    }

    pub(super) fn delta_shape(&self) -> DeltaRuleShape {
        DeltaRuleShape {
            key_heads: self.config.num_heads,
            value_heads: self.config.value_heads(),
            key_dim: self.config.head_dim,
            value_dim: self.config.head_v_dim(),
        }
    }

    /// Queries, keys and values in a buffer that holds them side by side.
    pub(super) fn split_qkv(&self, buffer: BufferId) -> [Columns; 3] {
        let (k, v) = (self.config.key_dim(), self.config.value_dim());
        [(0, k), (k, k), (2 * k, v)].map(|(first, width)| Columns { buffer, first, width })
    }

    pub(super) fn beta_scale(&self) -> f64 {
        if self.config.allow_neg_eigval { 2.0 } else { 1.0 }
    }

    pub(super) fn gate_activation(&self) -> ops::GateActivation {
        match self.config.output_gate_activation {
            GateActivation::Swish => ops::GateActivation::Swish,
            GateActivation::Sigmoid => ops::GateActivation::Sigmoid,
        }
    }

    /// One block; returns what it saves and the stream after it.
    pub(super) fn block(
        &mut self,
        section: Section,
        prefix: &str,
        i: usize,
        stream: &Stream,
    ) -> (Saved, Stream) {
        let c = self.config;
        let name = |part: &str| format!("{prefix}layers.{i}.{part}");
        let Block {
            attn_norm,
            a_log,
            dt_bias,
            in_proj,
            conv,
            o_norm,
            o_proj,
            mlp_norm,
            gate_up,
            down,
        } = self.blocks[i];
        let columns = InProj::new(c);
        let (documents, shape) = (self.documents, self.delta_shape());
        let (attn_input, attn_normed, attn_rstd) =
            self.keep_norm(section, stream, attn_norm.value, &name("attn_norm"));
        let projected = self.linear(section, attn_normed, in_proj.value, name("in_proj"));
        let qkv = self.activation(name("qkv"), columns.qkv);
        self.b.push(
            section,
            ShortConv {
                x: columns.qkv(projected),
                weight: conv.map(|p| p.value),
                out: qkv,
                silu: true,
                documents,
                norm_heads: 2 * c.num_heads,
                head_dim: c.head_dim,
            },
        );
        let g = self.statistic(name("g"), columns.heads);
        let beta = self.statistic(name("beta"), columns.heads);
        self.b.push(
            section,
            Gates {
                a: columns.a(projected),
                b: columns.b(projected),
                a_log: a_log.value,
                dt_bias: dt_bias.value,
                g,
                beta,
                beta_scale: self.beta_scale(),
            },
        );
        let o = self.activation(name("o"), c.value_dim());
        let state = [
            self.b.geometry().max_chunks(),
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
        ];
        let saves = section == Section::Forward;
        let chunk_states = self.b.buffer(name("chunk_states"), &state, Role::Activation);
        let u = self.activation(name("u"), c.value_dim());
        let [q, k, v] = self.split_qkv(qkv);
        self.b.push(
            section,
            DeltaRule {
                q,
                k,
                v,
                g,
                beta,
                documents,
                initial_state: None,
                o,
                final_state: None,
                chunk_states: saves.then_some(chunk_states),
                u: saves.then_some(u),
                scale: (shape.key_dim as f64).powf(-0.5),
                shape,
            },
        );
        let o_normed = self.activation(name("o_norm"), c.value_dim());
        let o_rstd = self.statistic(name("o_norm.rstd"), columns.heads);
        self.b.push(
            section,
            GatedRmsNorm {
                x: o,
                gate: columns.gate(projected),
                weight: o_norm.value,
                out: o_normed,
                rstd: o_rstd,
                eps: c.norm_eps,
                activation: self.gate_activation(),
            },
        );
        let mixed = self.linear(section, o_normed, o_proj.value, name("o_proj"));
        let middle = Stream {
            x: attn_input,
            branches: [Some(mixed), None],
        };
        let (mlp_normed, mlp_rstd) = self.add_norm(section, &middle, None, mlp_norm.value, &name("mlp_norm"));
        let gate_up_out = self.linear(section, mlp_normed, gate_up.value, name("gate_up"));
        let activated = self.activation(name("swiglu"), c.mlp_size());
        self.b.push(
            section,
            SwiGlu {
                gate_up: gate_up_out,
                out: activated,
            },
        );
        let out = self.linear(section, activated, down.value, name("down"));
        let saved = Saved {
            attn_input,
            attn_normed,
            attn_rstd,
            projected,
            qkv,
            g,
            beta,
            chunk_states,
            u,
            o,
            o_normed,
            o_rstd,
            mixed,
            mlp_normed,
            mlp_rstd,
            gate_up: gate_up_out,
            activated,
        };
        let after = Stream {
            x: attn_input,
            branches: [Some(mixed), Some(out)],
        };
        (saved, after)
    }

    /// The loss and, when asked for, the gradients of x and the head; returns the buffer of per-row values.
    pub(super) fn loss(
        &mut self,
        section: Section,
        prefix: &str,
        x: BufferId,
        dx: Option<BufferId>,
    ) -> BufferId {
        let nll = self
            .b
            .buffer(format!("{prefix}nll"), &[self.rows], Role::Statistic);
        let shape = [self.chunk_rows, self.config.vocab_size];
        let logits = self
            .b
            .buffer(format!("{prefix}logits_chunk"), &shape, Role::Activation);
        let (grad_scale, dweight) = (self.grad_scale, self.head.1);
        let gradients = dx.map(|dx| LossGradients {
            grad_scale,
            dx,
            dweight,
        });
        let (labels, loss_sum, weight) = (self.labels, self.loss_sum, self.head.0);
        self.b.push(
            section,
            LinearCrossEntropy {
                x,
                weight,
                labels,
                nll,
                loss_sum,
                logits,
                gradients,
            },
        );
        nll
    }

    pub(super) fn logits(&mut self, x: BufferId) -> BufferId {
        let logits = self.linear(Section::Evaluate, x, self.head.0, "logits".to_owned());
        self.b.keep(logits);
        logits
    }
}
