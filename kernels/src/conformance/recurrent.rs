//! The gated delta rule token by token in f64, forward and backward: the definition itself, and the second oracle
//! beside the chunked form. Time `O(rows · K · V)` per head; the backward pass keeps every state.

use crate::ops::DeltaRuleShape;

/// Operands of one document, all dense and row-major: q, k `[T, H, K]`, v `[T, HV, V]`, g, beta `[T, HV]`.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// Queries.
    pub q: &'a [f64],
    /// Keys.
    pub k: &'a [f64],
    /// Values.
    pub v: &'a [f64],
    /// Log decays.
    pub g: &'a [f64],
    /// Writing strengths.
    pub beta: &'a [f64],
    /// `[HV, K, V]`; zero when absent.
    pub initial_state: Option<&'a [f64]>,
    /// Factor of the output.
    pub scale: f64,
    /// Head counts and sizes.
    pub shape: DeltaRuleShape,
}

/// Outputs and final state.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// `[T, HV, V]`.
    pub o: Vec<f64>,
    /// `[HV, K, V]`.
    pub final_state: Vec<f64>,
}

/// Gradients, shaped as the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// Of q.
    pub dq: Vec<f64>,
    /// Of k.
    pub dk: Vec<f64>,
    /// Of v.
    pub dv: Vec<f64>,
    /// Of g.
    pub dg: Vec<f64>,
    /// Of beta.
    pub dbeta: Vec<f64>,
    /// Of the initial state.
    pub dinitial_state: Vec<f64>,
}

impl Inputs<'_> {
    fn tokens(&self) -> usize {
        self.g.len() / self.shape.value_heads
    }

    /// Places of one token and value head: (q and k, v, g).
    fn places(&self, t: usize, j: usize) -> (usize, usize, usize) {
        let s = &self.shape;
        let h = j / (s.value_heads / s.key_heads);
        (
            (t * s.key_heads + h) * s.key_dim,
            (t * s.value_heads + j) * s.value_dim,
            t * s.value_heads + j,
        )
    }

    /// `exp(g) S` and `u = beta (v - (exp(g) S)ᵀ k)`.
    fn decay(&self, t: usize, j: usize, state: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (kd, vd) = (self.shape.key_dim, self.shape.value_dim);
        let (ki, vi, gi) = self.places(t, j);
        let decayed: Vec<f64> = state.iter().map(|s| s * self.g[gi].exp()).collect();
        let u = (0..vd)
            .map(|b| {
                let read: f64 = (0..kd).map(|a| decayed[a * vd + b] * self.k[ki + a]).sum();
                self.beta[gi] * (self.v[vi + b] - read)
            })
            .collect();
        (decayed, u)
    }

    fn step(&self, t: usize, j: usize, state: &[f64]) -> Vec<f64> {
        let vd = self.shape.value_dim;
        let (ki, ..) = self.places(t, j);
        let (mut next, u) = self.decay(t, j, state);
        for (a, row) in next.chunks_exact_mut(vd).enumerate() {
            row.iter_mut().zip(&u).for_each(|(s, u)| *s += self.k[ki + a] * u);
        }
        next
    }

    fn start(&self, j: usize) -> Vec<f64> {
        let n = self.shape.key_dim * self.shape.value_dim;
        self.initial_state
            .map_or_else(|| vec![0.0; n], |s| s[j * n..(j + 1) * n].to_vec())
    }

    /// Forward.
    pub fn forward(&self) -> Outputs {
        let DeltaRuleShape {
            value_heads,
            key_dim: kd,
            value_dim: vd,
            ..
        } = self.shape;
        let mut o = vec![0.0; self.tokens() * value_heads * vd];
        let mut final_state = Vec::new();
        for j in 0..value_heads {
            let mut state = self.start(j);
            for t in 0..self.tokens() {
                state = self.step(t, j, &state);
                let (qi, oi, _) = self.places(t, j);
                for b in 0..vd {
                    o[oi + b] = self.scale * (0..kd).map(|a| state[a * vd + b] * self.q[qi + a]).sum::<f64>();
                }
            }
            final_state.extend(state);
        }
        Outputs { o, final_state }
    }

    /// Backward, for cotangents of the outputs and of the final state.
    pub fn backward(&self, dout: &[f64], dfinal_state: Option<&[f64]>) -> Gradients {
        let DeltaRuleShape {
            value_heads,
            key_dim: kd,
            value_dim: vd,
            ..
        } = self.shape;
        let mut d = Gradients {
            dq: vec![0.0; self.q.len()],
            dk: vec![0.0; self.k.len()],
            dv: vec![0.0; self.v.len()],
            dg: vec![0.0; self.g.len()],
            dbeta: vec![0.0; self.beta.len()],
            dinitial_state: Vec::new(),
        };
        for j in 0..value_heads {
            let mut states = vec![self.start(j)];
            for t in 0..self.tokens() {
                states.push(self.step(t, j, &states[t]));
            }
            let n = kd * vd;
            let mut ds = dfinal_state.map_or_else(|| vec![0.0; n], |s| s[j * n..(j + 1) * n].to_vec());
            for t in (0..self.tokens()).rev() {
                let (ki, vi, gi) = self.places(t, j);
                let (decayed, u) = self.decay(t, j, &states[t]);
                let state = &states[t + 1];
                let mut du = vec![0.0; vd];
                for a in 0..kd {
                    for b in 0..vd {
                        let at = a * vd + b;
                        d.dq[ki + a] += self.scale * dout[vi + b] * state[at];
                        ds[at] += self.scale * self.q[ki + a] * dout[vi + b];
                        d.dk[ki + a] += ds[at] * u[b];
                        du[b] += ds[at] * self.k[ki + a];
                    }
                }
                for b in 0..vd {
                    // u = beta r, r = v - decayedᵀ k; not r = u / beta, which fails for beta = 0.
                    let read: f64 = (0..kd).map(|a| decayed[a * vd + b] * self.k[ki + a]).sum();
                    d.dbeta[gi] += du[b] * (self.v[vi + b] - read);
                    let dr = self.beta[gi] * du[b];
                    d.dv[vi + b] += dr;
                    for a in 0..kd {
                        d.dk[ki + a] -= dr * decayed[a * vd + b];
                        ds[a * vd + b] -= dr * self.k[ki + a];
                    }
                }
                d.dg[gi] += ds.iter().zip(&decayed).map(|(x, y)| x * y).sum::<f64>();
                ds.iter_mut().for_each(|x| *x *= self.g[gi].exp());
            }
            d.dinitial_state.extend(ds);
        }
        d
    }
}
