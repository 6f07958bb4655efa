//! The running form of a [`Source`]: one node a step, each pulling from the one below.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::chunk::Chunk;
use super::mix::{Mix, MixState, Picker};
use super::source::{IterableError, Source, TABLE_ROWS};
use crate::interleave::StoppingStrategy;
use crate::rng::numpy::Generator;

/// A step of a running stream.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Shards {
        shards: Vec<Range<u64>>,
        table_rows: u64,
        shard: usize,
        row: u64,
    },
    Rebatch {
        source: Box<Node>,
        rows: u64,
        pending: Chunk,
    },
    Mix(Mix),
    Buffer {
        source: Box<Node>,
        size: u64,
        start: Generator,
        generator: Generator,
        buffer: Vec<u64>,
    },
    Step {
        source: Box<Node>,
        step: u64,
        offset: u64,
        seen: u64,
    },
    Skip {
        source: Box<Node>,
        rows: u64,
        left: u64,
    },
    Take {
        source: Box<Node>,
        rows: u64,
        left: u64,
    },
}

/// The moving parts of a [`Node`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NodeState {
    Shards {
        shard: usize,
        row: u64,
    },
    Rebatch {
        source: Box<NodeState>,
        pending: Chunk,
    },
    Mix(MixState),
    Buffer {
        source: Box<NodeState>,
        buffer: Vec<u64>,
        draws: DrawState,
    },
    Step {
        source: Box<NodeState>,
        seen: u64,
    },
    Skip {
        source: Box<NodeState>,
        left: u64,
    },
    Take {
        source: Box<NodeState>,
        left: u64,
    },
}

/// Where a generator stands: words drawn since it was seeded, and a half kept for the next 32-bit draw.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct DrawState {
    pub(super) words_drawn: u64,
    half: Option<u32>,
}

impl DrawState {
    pub(super) fn of(generator: &Generator) -> Self {
        DrawState {
            words_drawn: generator.bits().words_drawn() as u64,
            half: generator.bits().buffered_half(),
        }
    }

    pub(super) fn apply(self, generator: &mut Generator) {
        generator.bits_mut().seek(self.words_drawn.into(), self.half);
    }
}

impl Node {
    pub(super) fn new(source: &Source) -> Result<Self, IterableError> {
        let boxed = |source: &Source| Node::new(source).map(Box::new);
        Ok(match source {
            Source::Shards { shards, tables } => Node::Shards {
                shards: shards.clone(),
                table_rows: if *tables { TABLE_ROWS } else { 1 },
                shard: 0,
                row: 0,
            },
            Source::Rebatch { source, rows } => Node::Rebatch {
                source: boxed(source)?,
                rows: *rows,
                pending: Chunk::empty(),
            },
            Source::Cycle {
                sources,
                stopping_strategy,
            } => Node::Mix(Mix::new(sources, *stopping_strategy, Picker::turns())?),
            Source::Draw {
                sources,
                probabilities,
                generator,
                stopping_strategy,
            } => {
                let picker = Picker::draws(probabilities, generator);
                Node::Mix(Mix::new(sources, *stopping_strategy, picker)?)
            }
            Source::InterleaveShards { source, max } => {
                let groups = source.num_shards().min(*max);
                if groups == 0 {
                    return Node::new(source);
                }
                let groups: Vec<Source> = (0..groups).map(|i| source.shard(groups, i, true)).collect();
                Node::Mix(Mix::new(
                    &groups,
                    StoppingStrategy::AllExhaustedWithoutReplacement,
                    Picker::turns(),
                )?)
            }
            Source::Buffer {
                source,
                size,
                generator,
            } => Node::Buffer {
                source: boxed(source)?,
                size: *size,
                start: generator.clone(),
                generator: generator.clone(),
                buffer: Vec::new(),
            },
            Source::Step { source, step, offset } => Node::Step {
                source: boxed(source)?,
                step: *step,
                offset: *offset,
                seen: 0,
            },
            Source::Skip { source, rows, .. } => Node::Skip {
                source: boxed(source)?,
                rows: *rows,
                left: *rows,
            },
            Source::Take { source, rows, .. } => Node::Take {
                source: boxed(source)?,
                rows: *rows,
                left: *rows,
            },
        })
    }

    /// Back to the first row.
    pub(super) fn reset(&mut self) {
        match self {
            Node::Shards { shard, row, .. } => (*shard, *row) = (0, 0),
            Node::Rebatch { source, pending, .. } => {
                source.reset();
                *pending = Chunk::empty();
            }
            Node::Mix(mix) => mix.reset(),
            Node::Buffer {
                source,
                start,
                generator,
                buffer,
                ..
            } => {
                source.reset();
                generator.clone_from(start);
                buffer.clear();
            }
            Node::Step { source, seen, .. } => {
                source.reset();
                *seen = 0;
            }
            Node::Skip { source, rows, left } | Node::Take { source, rows, left } => {
                source.reset();
                *left = *rows;
            }
        }
    }

    /// The next chunk, never an empty one.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, IterableError> {
        match self {
            Node::Shards {
                shards,
                table_rows,
                shard,
                row,
            } => {
                while let Some(range) = shards.get(*shard) {
                    let start = range.start + *row;
                    if start < range.end {
                        let end = range.end.min(start + *table_rows);
                        *row += end - start;
                        return Ok(Some(Chunk::Run(start..end)));
                    }
                    (*shard, *row) = (*shard + 1, 0);
                }
                Ok(None)
            }
            Node::Rebatch {
                source,
                rows,
                pending,
            } => {
                if pending.len() >= *rows {
                    return Ok(Some(pending.split_front(*rows)));
                }
                let mut parts = vec![std::mem::replace(pending, Chunk::empty())];
                let mut have = parts[0].len();
                while have < *rows {
                    let Some(mut chunk) = source.next()? else { break };
                    let more = chunk.len().min(*rows - have);
                    parts.push(chunk.split_front(more));
                    have += more;
                    *pending = chunk;
                }
                parts.retain(|part| part.len() > 0);
                Ok(match (parts.pop(), parts.is_empty()) {
                    (None, _) => None,
                    (Some(only), true) => Some(only),
                    (Some(last), false) => {
                        parts.push(last);
                        Some(Chunk::from_rows(parts.iter().flat_map(Chunk::rows).collect()))
                    }
                })
            }
            Node::Mix(mix) => mix.next(),
            Node::Buffer {
                source,
                size,
                generator,
                buffer,
                ..
            } => loop {
                let (keep, ended) = match source.next()? {
                    Some(chunk) => {
                        buffer.extend(chunk.rows());
                        if (buffer.len() as u64) < *size {
                            continue;
                        }
                        (*size / 2, false)
                    }
                    None => (0, true),
                };
                let order = generator.permutation(buffer.len() as u64)?;
                let mut mixed: Vec<u64> = order.iter().map(|i| buffer[i as usize]).collect();
                *buffer = mixed.split_off(mixed.len() - keep as usize);
                if !mixed.is_empty() {
                    return Ok(Some(Chunk::from_rows(mixed)));
                }
                if ended {
                    return Ok(None);
                }
            },
            Node::Step {
                source,
                step,
                offset,
                seen,
            } => {
                while let Some(chunk) = source.next()? {
                    let mut kept = Vec::new();
                    for row in chunk.rows() {
                        if *seen == *offset {
                            kept.push(row);
                        }
                        *seen = (*seen + 1) % *step;
                    }
                    if !kept.is_empty() {
                        return Ok(Some(Chunk::from_rows(kept)));
                    }
                }
                Ok(None)
            }
            Node::Skip { source, left, .. } => {
                while let Some(mut chunk) = source.next()? {
                    let skipped = chunk.len().min(*left);
                    chunk.split_front(skipped);
                    *left -= skipped;
                    if chunk.len() > 0 {
                        return Ok(Some(chunk));
                    }
                }
                Ok(None)
            }
            Node::Take { source, left, .. } => {
                if *left == 0 {
                    return Ok(None);
                }
                let Some(mut chunk) = source.next()? else {
                    return Ok(None);
                };
                let taken = chunk.len().min(*left);
                *left -= taken;
                Ok(Some(chunk.split_front(taken)))
            }
        }
    }

    pub(super) fn state(&self) -> NodeState {
        match self {
            Node::Shards { shard, row, .. } => NodeState::Shards {
                shard: *shard,
                row: *row,
            },
            Node::Rebatch { source, pending, .. } => NodeState::Rebatch {
                source: Box::new(source.state()),
                pending: pending.clone(),
            },
            Node::Mix(mix) => NodeState::Mix(mix.state()),
            Node::Buffer {
                source,
                generator,
                buffer,
                ..
            } => NodeState::Buffer {
                source: Box::new(source.state()),
                buffer: buffer.clone(),
                draws: DrawState::of(generator),
            },
            Node::Step { source, seen, .. } => NodeState::Step {
                source: Box::new(source.state()),
                seen: *seen,
            },
            Node::Skip { source, left, .. } => NodeState::Skip {
                source: Box::new(source.state()),
                left: *left,
            },
            Node::Take { source, left, .. } => NodeState::Take {
                source: Box::new(source.state()),
                left: *left,
            },
        }
    }

    pub(super) fn load(&mut self, state: &NodeState) -> Result<(), IterableError> {
        let other = |what: &str| Err(IterableError::State(what.to_string()));
        match (self, state) {
            (
                Node::Shards {
                    shards, shard, row, ..
                },
                NodeState::Shards { shard: s, row: r },
            ) => {
                let fits = match shards.get(*s) {
                    Some(range) => *r <= range.end - range.start,
                    None => *s == shards.len() && *r == 0,
                };
                if !fits {
                    return other("it stands in a shard this stream does not have");
                }
                (*shard, *row) = (*s, *r);
            }
            (
                Node::Rebatch { source, pending, .. },
                NodeState::Rebatch {
                    source: s,
                    pending: p,
                },
            ) => {
                pending.clone_from(p);
                source.load(s)?;
            }
            (Node::Mix(mix), NodeState::Mix(state)) => mix.load(state)?,
            (
                Node::Buffer {
                    source,
                    size,
                    generator,
                    buffer,
                    ..
                },
                NodeState::Buffer {
                    source: s,
                    buffer: b,
                    draws,
                },
            ) => {
                if b.len() as u64 > *size {
                    return other("its shuffle buffer is larger");
                }
                buffer.clone_from(b);
                draws.apply(generator);
                source.load(s)?;
            }
            (
                Node::Step {
                    source, step, seen, ..
                },
                NodeState::Step { source: s, seen: n },
            ) if n < step => {
                *seen = *n;
                source.load(s)?;
            }
            (Node::Skip { source, rows, left }, NodeState::Skip { source: s, left: n })
            | (Node::Take { source, rows, left }, NodeState::Take { source: s, left: n })
                if n <= rows =>
            {
                *left = *n;
                source.load(s)?;
            }
            _ => return other("its steps are others"),
        }
        Ok(())
    }
}
