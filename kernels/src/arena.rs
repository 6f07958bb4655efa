//! Memory plan: where every buffer lies, with memory reused between buffers that do not live at the same time.
//!
//! Positions of operators on one time line: `Begin`, `Forward`, `Backward`, `Update`, then `Evaluate`. A buffer of a
//! role that does not persist lives from the first operator that touches it to the last (to the end of the line if
//! it is kept; all of it if the host writes it). Buffers are placed largest first at the lowest offset that is free during their whole life: within a
//! few percent of the peak of live bytes on the plans of this project. Cost: quadratic in the number of buffers,
//! once at start.

use std::ops::Range;

use crate::ops::Access;
use crate::plan::{Plan, Role, Section};

/// Storage of an executor.
#[derive(Clone, Copy)]
pub struct Storage<'a> {
    /// Bytes per element of a role; 0 for roles that the executor holds elsewhere.
    pub element: &'a dyn Fn(Role) -> usize,
    /// Bytes that an executor wants right after a buffer (at the next multiple of `align`), for as long as it lives.
    pub tail: &'a dyn Fn(usize) -> usize,
    /// Alignment of every buffer in bytes, a power of two.
    pub align: usize,
}

/// Where the buffers lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Byte offset of each buffer: persistent ones in the persistent block, others in the arena.
    pub offsets: Vec<usize>,
    /// Bytes of the persistent block.
    pub persistent: usize,
    /// Bytes of the arena.
    pub arena: usize,
    /// Bytes the arena would have if nothing were reused.
    pub arena_without_reuse: usize,
    /// Life of each buffer on the time line; empty if nothing uses it.
    pub lives: Vec<Range<usize>>,
}

impl Layout {
    /// Plans the memory of `plan`.
    pub fn new(plan: &Plan, storage: Storage) -> Self {
        let lives = lives(plan);
        let size = |i: usize| {
            let b = &plan.buffers[i];
            let own = (b.len() * (storage.element)(b.role)).next_multiple_of(storage.align);
            own + (storage.tail)(i).next_multiple_of(storage.align)
        };
        let mut offsets = vec![0; plan.buffers.len()];
        let mut persistent = 0;
        let mut arena_without_reuse = 0;
        let mut moving = Vec::new();
        for (i, b) in plan.buffers.iter().enumerate() {
            if b.role.persistent() {
                offsets[i] = persistent;
                persistent += size(i);
            } else if lives[i].start < lives[i].end {
                arena_without_reuse += size(i);
                moving.push(i);
            }
        }
        moving.sort_by_key(|&i| (std::cmp::Reverse(size(i)), lives[i].start, i));
        let mut arena = 0;
        let mut placed: Vec<usize> = Vec::new();
        for &i in &moving {
            let mut taken: Vec<Range<usize>> = placed
                .iter()
                .filter(|&&j| lives[j].start < lives[i].end && lives[i].start < lives[j].end)
                .map(|&j| offsets[j]..offsets[j] + size(j))
                .collect();
            taken.sort_by_key(|r| r.start);
            let mut at = 0;
            for r in taken {
                if r.start >= at + size(i) {
                    break;
                }
                at = at.max(r.end);
            }
            offsets[i] = at;
            arena = arena.max(at + size(i));
            placed.push(i);
        }
        Layout {
            offsets,
            persistent,
            arena,
            arena_without_reuse,
            lives,
        }
    }
}

/// Life of each buffer: half-open range of positions on the time line.
fn lives(plan: &Plan) -> Vec<Range<usize>> {
    let mut lives = vec![0..0; plan.buffers.len()];
    let mut at = 0;
    for op in Section::ALL.iter().flat_map(|&s| plan.ops(s)) {
        op.visit(&mut |id, _: Access| {
            let life = &mut lives[id.index()];
            if life.start == life.end {
                *life = at..at + 1;
            }
            life.end = at + 1;
        });
        at += 1;
    }
    for (life, buffer) in lives.iter_mut().zip(&plan.buffers) {
        if buffer.keep && life.start < life.end {
            life.end = at;
        }
        if buffer.input {
            *life = 0..at;
        }
    }
    lives
}
