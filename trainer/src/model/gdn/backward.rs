//! The backward pass: from the loss to the gradients of all parameters.

use super::*;

impl Emitter<'_> {
    fn linear_backward_input(&mut self, dout: BufferId, x: BufferId, p: Parameter, name: String) -> BufferId {
        let dx = self.activation(name, self.b.get(x).width());
        let (dout, dx_columns) = (self.b.columns(dout), self.b.columns(dx));
        self.b.push(
            Section::Backward,
            LinearBackwardInput {
                dout,
                weight: p.value,
                dx: dx_columns,
            },
        );
        dx
    }

    fn linear_backward_weight(&mut self, dout: BufferId, x: BufferId, p: Parameter) {
        let (dout, x) = (self.b.columns(dout), self.b.columns(x));
        self.b.push(
            Section::Backward,
            LinearBackwardWeight {
                dout,
                x,
                dweight: p.gradient,
            },
        );
    }

    /// Gradient of [`Self::add_norm`]: returns those of the stream and of the branch.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn add_norm_backward(
        &mut self,
        x: BufferId,
        branch: Option<BufferId>,
        rstd: BufferId,
        p: Parameter,
        dout: BufferId,
        dresidual: Option<BufferId>,
        copy: bool,
        name: &str,
    ) -> (BufferId, BufferId) {
        let dsum = self.residual(format!("{name}.dsum"));
        let dbranch = copy.then(|| self.activation(format!("{name}.dbranch"), self.config.hidden_size));
        let (weight, dweight) = (p.value, p.gradient);
        let op = AddRmsNormBackward {
            x,
            branch,
            rstd,
            weight,
            dout,
            dresidual,
            dsum,
            dbranch,
            out: None,
            dweight,
        };
        self.b.push(Section::Backward, op);
        (dsum, dbranch.unwrap_or(dsum))
    }

    pub(super) fn backward(&mut self, saved: &[Saved], last: &Last, dout: BufferId, copies: bool) {
        let (mut dx, mut dbranch) =
            self.add_norm_backward(last.input, None, last.rstd, self.norm, dout, None, copies, "norm");
        for (i, saved) in saved.iter().enumerate().rev() {
            (dx, dbranch) = self.block_backward(i, saved, dx, dbranch, copies);
        }
        let (tokens, dtable) = (self.tokens, self.embeddings.gradient);
        self.b.push(
            Section::Backward,
            EmbeddingBackward {
                tokens,
                dout: dx,
                dtable,
            },
        );
    }

    /// From the gradients of the stream and of the MLP's branch to those before the block.
    pub(super) fn block_backward(
        &mut self,
        i: usize,
        s: &Saved,
        dx: BufferId,
        dbranch: BufferId,
        copies: bool,
    ) -> (BufferId, BufferId) {
        let c = self.config;
        let name = |part: &str| format!("layers.{i}.{part}");
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
        // A weight's gradient comes after that of the operator before it, which can write the product's input again on its
        // way.
        let dactivated = self.linear_backward_input(dbranch, s.activated, down, name("swiglu.dout"));
        let dgate_up = self.activation(name("gate_up.dout"), 2 * c.mlp_size());
        self.b.push(
            Section::Backward,
            SwiGluBackward {
                gate_up: s.gate_up,
                dout: dactivated,
                dgate_up,
                out: None,
            },
        );
        self.linear_backward_weight(dbranch, s.activated, down);
        let dnormed = self.linear_backward_input(dgate_up, s.mlp_normed, gate_up, name("mlp_norm.dout"));
        let (dx, dmixed) = self.add_norm_backward(
            s.attn_input,
            Some(s.mixed),
            s.mlp_rstd,
            mlp_norm,
            dnormed,
            Some(dx),
            copies,
            &name("mlp_norm"),
        );
        self.linear_backward_weight(dgate_up, s.mlp_normed, gate_up);
        let dnormed = self.linear_backward_input(dmixed, s.o_normed, o_proj, name("o_norm.dout"));
        let dprojected = self.activation(name("in_proj.dout"), columns.width());
        let dout = self.activation(name("o.dout"), c.value_dim());
        self.b.push(
            Section::Backward,
            GatedRmsNormBackward {
                x: s.o,
                gate: columns.gate(s.projected),
                weight: o_norm.value,
                rstd: s.o_rstd,
                dout: dnormed,
                out: None,
                dx: dout,
                dgate: columns.gate(dprojected),
                dweight: o_norm.gradient,
                activation: self.gate_activation(),
            },
        );
        self.linear_backward_weight(dmixed, s.o_normed, o_proj);
        let dqkv = self.activation(name("qkv.dout"), columns.qkv);
        let dg = self.statistic(name("g.dout"), columns.heads);
        let dbeta = self.statistic(name("beta.dout"), columns.heads);
        let ([q, k, v], [dq, dk, dv]) = (self.split_qkv(s.qkv), self.split_qkv(dqkv));
        self.b.push(
            Section::Backward,
            DeltaRuleBackward {
                q,
                k,
                v,
                g: s.g,
                beta: s.beta,
                documents,
                initial_state: None,
                chunk_states: s.chunk_states,
                u: s.u,
                recompute: false,
                dout,
                dfinal_state: None,
                dq,
                dk,
                dv,
                dg,
                dbeta,
                dinitial_state: None,
                scale: (shape.key_dim as f64).powf(-0.5),
                shape,
            },
        );
        self.b.push(
            Section::Backward,
            GatesBackward {
                a: columns.a(s.projected),
                a_log: a_log.value,
                dt_bias: dt_bias.value,
                g: s.g,
                beta: s.beta,
                dg,
                dbeta,
                da: columns.a(dprojected),
                db: columns.b(dprojected),
                da_log: a_log.gradient,
                ddt_bias: dt_bias.gradient,
                beta_scale: self.beta_scale(),
            },
        );
        self.b.push(
            Section::Backward,
            ShortConvBackward {
                x: columns.qkv(s.projected),
                weight: conv.map(|p| p.value),
                dout: dqkv,
                dx: columns.qkv(dprojected),
                dweight: conv.map(|p| p.gradient),
                silu: true,
                documents,
                norm_heads: 2 * c.num_heads,
                head_dim: c.head_dim,
            },
        );
        let dnormed = self.linear_backward_input(dprojected, s.attn_normed, in_proj, name("attn_norm.dout"));
        let name = name("attn_norm");
        // The first block's norm has no branch to hand a gradient to.
        let copies = copies && i > 0;
        let before = self.add_norm_backward(
            s.attn_input,
            None,
            s.attn_rstd,
            attn_norm,
            dnormed,
            Some(dx),
            copies,
            &name,
        );
        self.linear_backward_weight(dprojected, s.attn_normed, in_proj);
        before
    }
}
