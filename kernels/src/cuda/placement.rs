//! Where everything of a plan lies on the device: how large the arena is, and the address of each buffer and table.

use std::collections::{BTreeMap, BTreeSet};

use super::Precision;
use super::lower::{ALIGN, DocumentAddresses, Places};
use crate::arena::{Layout, Storage};
use crate::ops::{CHUNK, DeltaRuleShape, Op};
use crate::plan::{BufferId, Geometry, Plan, Role, Section};

/// Most bytes that writing an id buffer sends: the ids, their order, and the documents' tables.
pub(super) fn ids_bytes(plan: &Plan) -> usize {
    let ids = plan.buffers.iter().filter(|b| b.role == Role::Ids);
    let largest = ids.map(|b| 8 * b.len()).max().unwrap_or(0);
    let g = plan.geometry;
    largest + 16 * g.max_chunks() + 12 * (g.max_documents + 1) + 4 * g.rows() + 1024
}

/// Bytes of the tables that belong to ids.
pub(super) struct TableSizes {
    pub(super) documents: BTreeSet<BufferId>,
    pub(super) tokens: BTreeSet<BufferId>,
    pub(super) copies: BTreeSet<BufferId>,
}

pub(super) fn tables(plan: &Plan, precision: Precision) -> TableSizes {
    let mut t = TableSizes {
        documents: BTreeSet::new(),
        tokens: BTreeSet::new(),
        copies: BTreeSet::new(),
    };
    for op in Section::ALL.iter().flat_map(|&s| plan.ops(s)) {
        match op {
            Op::ShortConv(o) => _ = t.documents.insert(o.documents),
            Op::ShortConvBackward(o) => _ = t.documents.insert(o.documents),
            Op::DeltaRule(o) => _ = t.documents.insert(o.documents),
            Op::DeltaRuleBackward(o) => _ = t.documents.insert(o.documents),
            Op::EmbeddingBackward(o) => _ = t.tokens.insert(o.tokens),
            Op::Linear(o) => _ = t.copies.insert(o.weight),
            Op::LinearBackwardInput(o) => _ = t.copies.insert(o.weight),
            Op::LinearCrossEntropy(o) => _ = t.copies.insert(o.weight),
            _ => {}
        }
    }
    if precision == Precision::Fp32 {
        t.copies.clear();
    }
    t
}

/// Where buffers lie: what a delta rule's forward pass solves and its backward pass needs follows the chunk states that
/// the two share.
pub(super) fn layout(plan: &Plan, precision: Precision) -> Layout {
    let element = |role: Role| precision.bytes(role) as usize;
    let saved = saved_solutions(plan, precision);
    let tail = |i: usize| saved.get(&i).map_or(0, |&bytes| bytes as usize);
    let storage = Storage {
        element: &element,
        tail: &tail,
        align: ALIGN as usize,
    };
    Layout::new(plan, storage)
}

/// Bytes of what a delta rule's forward pass solves for its backward pass: T, the decays' sums, W and U.
pub(super) fn solution_bytes(geometry: Geometry, shape: DeltaRuleShape, elem: u64) -> [u64; 4] {
    let heads = shape.value_heads as u64;
    let (tiles, rows) = (
        geometry.max_chunks() as u64 * heads,
        geometry.rows() as u64 * heads,
    );
    let t = tiles * (CHUNK * CHUNK) as u64 * elem;
    let [w, u] = [shape.key_dim, shape.value_dim].map(|dim| rows * dim as u64 * elem);
    [t, rows * 4, w, u].map(|bytes| bytes.next_multiple_of(ALIGN))
}

/// Bytes of the solutions that follow a buffer of chunk states, by the buffer's position in the plan.
pub(super) fn saved_solutions(plan: &Plan, precision: Precision) -> BTreeMap<usize, u64> {
    let mut read: BTreeMap<BufferId, u64> = BTreeMap::new();
    let mut written = BTreeSet::new();
    for op in Section::ALL.iter().flat_map(|&s| plan.ops(s)) {
        match op {
            Op::DeltaRule(o) => written.extend(o.chunk_states),
            Op::DeltaRuleBackward(o) if !o.recompute => {
                let elem = precision.bytes(Role::Activation);
                let bytes = solution_bytes(plan.geometry, o.shape, elem).iter().sum();
                read.insert(o.chunk_states, bytes);
            }
            _ => {}
        }
    }
    read.into_iter()
        .filter(|(id, _)| written.contains(id))
        .map(|(id, bytes)| (id.index(), bytes))
        .collect()
}

/// Places buffers in their blocks, which start at the given addresses, and the tables that belong to ids in a block of
/// their own, whose size is returned and which starts at 0 until [`Places::move_side`].
pub(super) fn place(
    plan: &Plan,
    layout: &Layout,
    sizes: &TableSizes,
    persistent: u64,
    arena: u64,
) -> (Places, u64) {
    let buffers = plan
        .buffers
        .iter()
        .zip(&layout.offsets)
        .map(|(b, &o)| if b.role.persistent() { persistent } else { arena } + o as u64)
        .collect();
    let g = plan.geometry;
    let mut total = 0u64;
    let mut take = |bytes: u64| {
        let at = total;
        total += bytes.next_multiple_of(ALIGN);
        at
    };
    let mut documents = BTreeMap::new();
    for &id in &sizes.documents {
        let d = DocumentAddresses {
            chunks: take(16 * g.max_chunks() as u64),
            docs: take(8 * g.max_documents as u64),
            counts: take(8),
            start: take(4 * g.rows() as u64),
        };
        documents.insert(id, d);
    }
    let row_orders = sizes
        .tokens
        .iter()
        .map(|&id| (id, take(4 * plan.buffer(id).len() as u64)))
        .collect();
    let copies = sizes
        .copies
        .iter()
        .map(|&id| (id, take(2 * plan.buffer(id).len() as u64)))
        .collect();
    let places = Places {
        buffers,
        copies,
        documents,
        row_orders,
        saved: BTreeMap::new(),
    };
    (places, total)
}

/// Addresses of the solutions, right after their buffers.
pub(super) fn solutions(
    plan: &Plan,
    precision: Precision,
    saved: &BTreeMap<usize, u64>,
    buffers: &[u64],
) -> BTreeMap<usize, u64> {
    let end = |i: usize| {
        let b = &plan.buffers[i];
        buffers[i] + (b.len() as u64 * precision.bytes(b.role)).next_multiple_of(ALIGN)
    };
    saved.keys().map(|&i| (i, end(i))).collect()
}
