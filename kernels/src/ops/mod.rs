//! The operators: contract (maths, shapes, source) of each fused unit, one file each. Implementations live in
//! [`crate::cpu`]; the tests that any executor must pass in [`crate::conformance`].
//!
//! Common rules:
//! - Gradients of parameters are accumulated (`+=`), every other output is overwritten (`=`) unless an operator says
//!   otherwise.
//! - `rows` is the number of tokens of the micro-batch, see [`crate::plan`].
//! - Operators named `…Backward` take the gradient of the loss with respect to the forward operator's output and give
//!   the gradients with respect to its inputs.

mod adamw;
mod check;
mod cross_entropy;
mod delta_rule;
mod embedding;
mod gated_rms_norm;
mod gates;
mod global_norm;
mod linear;
mod rms_norm;
mod short_conv;
mod swiglu;
mod zero;

pub use adamw::{AdamW, AdamWTensor, Decay, HYPER_LEARNING_RATE, HYPER_LEN, HYPER_STEP};
pub use cross_entropy::{IGNORE_INDEX, LinearCrossEntropy, LossGradients};
pub use delta_rule::{CHUNK, DeltaRule, DeltaRuleBackward, DeltaRuleShape};
pub use embedding::{Embedding, EmbeddingBackward};
pub use gated_rms_norm::{GateActivation, GatedRmsNorm, GatedRmsNormBackward};
pub use gates::{Gates, GatesBackward};
pub use global_norm::GlobalNorm;
pub use linear::{Linear, LinearBackwardInput, LinearBackwardWeight};
pub use rms_norm::{AddRmsNorm, AddRmsNormBackward};
pub use short_conv::{L2_EPS, ShortConv, ShortConvBackward};
pub use swiglu::{SwiGlu, SwiGluBackward};
pub use zero::{AddInto, Zero};

use crate::plan::{BufferId, Columns, Plan, PlanError};

/// How an operator touches an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads it.
    Read,
    /// Overwrites all of it.
    Write,
    /// Overwrites some columns of it (several operators fill one buffer).
    WriteColumns,
    /// Reads and writes it: accumulation, or an update in place.
    Update,
    /// Uses it as working memory; undefined before and after.
    Scratch,
}

impl Access {
    /// One character for listings: `<` read, `>` write, `*` update, `~` scratch.
    pub fn sign(self) -> char {
        match self {
            Access::Read => '<',
            Access::Write | Access::WriteColumns => '>',
            Access::Update => '*',
            Access::Scratch => '~',
        }
    }
}

/// Something that names buffers.
pub(crate) trait Operand {
    fn each(&mut self, f: &mut dyn FnMut(&mut BufferId));
}

impl Operand for BufferId {
    fn each(&mut self, f: &mut dyn FnMut(&mut BufferId)) {
        f(self)
    }
}

impl Operand for Columns {
    fn each(&mut self, f: &mut dyn FnMut(&mut BufferId)) {
        f(&mut self.buffer)
    }
}

impl<T: Operand> Operand for Option<T> {
    fn each(&mut self, f: &mut dyn FnMut(&mut BufferId)) {
        self.iter_mut().for_each(|x| x.each(f))
    }
}

impl<T: Operand, const N: usize> Operand for [T; N] {
    fn each(&mut self, f: &mut dyn FnMut(&mut BufferId)) {
        self.iter_mut().for_each(|x| x.each(f))
    }
}

impl<T: Operand> Operand for Vec<T> {
    fn each(&mut self, f: &mut dyn FnMut(&mut BufferId)) {
        self.iter_mut().for_each(|x| x.each(f))
    }
}

/// Lists an operator's buffer fields by access; the order of the list is the order in listings.
macro_rules! operands {
    ($op:ident { $($access:ident: $($field:ident $(. $sub:ident)?),+);+ $(;)? }) => {
        impl $op {
            pub(crate) fn visit_mut(
                &mut self,
                f: &mut dyn FnMut(&mut crate::plan::BufferId, crate::ops::Access),
            ) {
                $($(crate::ops::Operand::each(
                    &mut self.$field$(.$sub)?,
                    &mut |id| f(id, crate::ops::Access::$access),
                );)+)+
            }
        }
    };
}
pub(crate) use operands;

macro_rules! op_enum {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// One operator of a plan.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $($(#[$doc])* $name($name)),+
        }

        impl Op {
            /// The operator's name, for messages, profiles and listings.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$name(_) => stringify!($name)),+
                }
            }

            /// Calls `f` for every operand, with the possibility to replace it.
            pub fn visit_mut(&mut self, f: &mut dyn FnMut(&mut BufferId, Access)) {
                match self {
                    $(Op::$name(op) => op.visit_mut(f)),+
                }
            }

            /// Checks shapes and roles of the operands.
            ///
            /// # Errors
            /// [`PlanError::Shape`], [`PlanError::Role`] or [`PlanError::Unsupported`].
            pub fn check(&self, plan: &Plan) -> Result<(), PlanError> {
                match self {
                    $(Op::$name(op) => op.check(plan)),+
                }
            }

            /// Floating-point operations of one execution that a matrix unit would do, counted as 2 per
            /// multiply-add; 0 for operators bound by memory.
            pub fn flops(&self, plan: &Plan) -> u64 {
                match self {
                    $(Op::$name(op) => op.flops(plan)),+
                }
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op {
                Op::$name(op)
            }
        })+
    };
}

op_enum! {
    /// See [`Zero`].
    Zero,
    /// See [`AddInto`].
    AddInto,
    /// See [`Embedding`].
    Embedding,
    /// See [`EmbeddingBackward`].
    EmbeddingBackward,
    /// See [`Linear`].
    Linear,
    /// See [`LinearBackwardInput`].
    LinearBackwardInput,
    /// See [`LinearBackwardWeight`].
    LinearBackwardWeight,
    /// See [`AddRmsNorm`].
    AddRmsNorm,
    /// See [`AddRmsNormBackward`].
    AddRmsNormBackward,
    /// See [`ShortConv`].
    ShortConv,
    /// See [`ShortConvBackward`].
    ShortConvBackward,
    /// See [`Gates`].
    Gates,
    /// See [`GatesBackward`].
    GatesBackward,
    /// See [`DeltaRule`].
    DeltaRule,
    /// See [`DeltaRuleBackward`].
    DeltaRuleBackward,
    /// See [`GatedRmsNorm`].
    GatedRmsNorm,
    /// See [`GatedRmsNormBackward`].
    GatedRmsNormBackward,
    /// See [`SwiGlu`].
    SwiGlu,
    /// See [`SwiGluBackward`].
    SwiGluBackward,
    /// See [`LinearCrossEntropy`].
    LinearCrossEntropy,
    /// See [`GlobalNorm`].
    GlobalNorm,
    /// See [`AdamW`].
    AdamW,
}

impl Op {
    /// Calls `f` for every operand.
    pub fn visit(&self, f: &mut dyn FnMut(BufferId, Access)) {
        self.clone().visit_mut(&mut |id, access| f(*id, access));
    }

    /// Least bytes the operator has to move once, given the bytes per element of each role: every operand read or
    /// written once (updates count twice). The floor of a memory-bound operator's time.
    pub fn bytes(&self, plan: &Plan, element: &dyn Fn(crate::plan::Role) -> usize) -> u64 {
        let mut total = 0u64;
        self.visit(&mut |id, access| {
            let b = plan.buffer(id);
            let n = (b.len() * element(b.role)) as u64;
            total += match access {
                Access::Read | Access::Write | Access::WriteColumns => n,
                Access::Update => 2 * n,
                Access::Scratch => 0,
            };
        });
        total
    }
}
