//! The running form of a mix of sources.

use serde::{Deserialize, Serialize};

use super::chunk::Chunk;
use super::node::{DrawState, Node, NodeState};
use super::source::{IterableError, Source};
use crate::interleave::{DRAWS_AT_ONCE, StoppingStrategy};
use crate::rng::numpy::Generator;

/// Sources that alternate. One chunk of each is read ahead, which is how the package sees that a source ends.
#[derive(Clone, Debug)]
pub(super) struct Mix {
    sources: Vec<Node>,
    ahead: Vec<Ahead>,
    exhausted: Vec<bool>,
    stopping_strategy: StoppingStrategy,
    picker: Picker,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ahead {
    /// Nothing read yet.
    Unread,
    /// The next chunk.
    Chunk(Chunk),
    /// The source has ended.
    End,
}

/// Which source comes next.
#[derive(Clone, Debug)]
pub(super) enum Picker {
    Turns { next: usize },
    Draws(Box<Draws>),
}

/// Random sources, drawn a block at a time.
#[derive(Clone, Debug)]
pub(super) struct Draws {
    probabilities: Vec<f64>,
    start: Generator,
    generator: Generator,
    block: Vec<u64>,
    used: usize,
}

/// The moving parts of a [`Mix`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MixState {
    sources: Vec<NodeState>,
    ahead: Vec<Ahead>,
    exhausted: Vec<bool>,
    picker: PickerState,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PickerState {
    Turns {
        next: usize,
    },
    /// Where the generator stood before the current block, and how many of its draws are used.
    Draws {
        draws: DrawState,
        used: usize,
    },
}

impl Mix {
    pub(super) fn new(
        sources: &[Source],
        stopping_strategy: StoppingStrategy,
        picker: Picker,
    ) -> Result<Self, IterableError> {
        Ok(Mix {
            sources: sources.iter().map(Node::new).collect::<Result<_, _>>()?,
            ahead: vec![Ahead::Unread; sources.len()],
            exhausted: vec![false; sources.len()],
            stopping_strategy,
            picker,
        })
    }

    pub(super) fn reset(&mut self) {
        self.sources.iter_mut().for_each(Node::reset);
        self.ahead.fill(Ahead::Unread);
        self.exhausted.fill(false);
        self.picker.reset();
    }

    pub(super) fn state(&self) -> MixState {
        MixState {
            sources: self.sources.iter().map(Node::state).collect(),
            ahead: self.ahead.clone(),
            exhausted: self.exhausted.clone(),
            picker: self.picker.state(),
        }
    }

    pub(super) fn load(&mut self, state: &MixState) -> Result<(), IterableError> {
        let n = self.sources.len();
        if [state.sources.len(), state.ahead.len(), state.exhausted.len()] != [n; 3] {
            return Err(IterableError::State(
                "it has another number of sources".to_string(),
            ));
        }
        self.ahead.clone_from(&state.ahead);
        self.exhausted.clone_from(&state.exhausted);
        self.picker.load(&state.picker, n)?;
        self.sources
            .iter_mut()
            .zip(&state.sources)
            .try_for_each(|(source, state)| source.load(state))
    }

    pub(super) fn next(&mut self) -> Result<Option<Chunk>, IterableError> {
        loop {
            let ended = match self.stopping_strategy {
                StoppingStrategy::FirstExhausted => self.exhausted.iter().any(|e| *e),
                _ => self.exhausted.iter().all(|e| *e),
            };
            if ended || self.sources.is_empty() {
                return Ok(None);
            }
            let i = self.picker.pick(self.sources.len())?;
            let once = self.stopping_strategy == StoppingStrategy::AllExhaustedWithoutReplacement;
            if once && self.exhausted[i] {
                continue;
            }
            let read = |source: &mut Node| -> Result<Ahead, IterableError> {
                Ok(source.next()?.map_or(Ahead::End, Ahead::Chunk))
            };
            let source = &mut self.sources[i];
            if self.ahead[i] == Ahead::Unread {
                self.ahead[i] = read(source)?;
            }
            let after = read(source)?;
            if after == Ahead::End {
                self.exhausted[i] = true;
            }
            let starts_over = after == Ahead::End && !once;
            let now = std::mem::replace(
                &mut self.ahead[i],
                if starts_over { Ahead::Unread } else { after },
            );
            if starts_over {
                source.reset();
            }
            if let Ahead::Chunk(chunk) = now {
                return Ok(Some(chunk));
            }
        }
    }
}

impl Picker {
    pub(super) fn turns() -> Self {
        Picker::Turns { next: 0 }
    }

    pub(super) fn draws(probabilities: &[f64], generator: &Generator) -> Self {
        Picker::Draws(Box::new(Draws {
            probabilities: probabilities.to_vec(),
            start: generator.clone(),
            generator: generator.clone(),
            block: Vec::new(),
            used: 0,
        }))
    }

    fn reset(&mut self) {
        match self {
            Picker::Turns { next } => *next = 0,
            Picker::Draws(draws) => {
                draws.generator.clone_from(&draws.start);
                draws.block.clear();
                draws.used = 0;
            }
        }
    }

    fn pick(&mut self, sources: usize) -> Result<usize, IterableError> {
        match self {
            Picker::Turns { next } => {
                let now = *next;
                *next = (now + 1) % sources;
                Ok(now)
            }
            Picker::Draws(draws) => {
                if draws.used == draws.block.len() {
                    draws.block = draws
                        .generator
                        .choice_weighted(&draws.probabilities, DRAWS_AT_ONCE)?;
                    draws.used = 0;
                }
                draws.used += 1;
                Ok(draws.block[draws.used - 1] as usize)
            }
        }
    }

    fn state(&self) -> PickerState {
        match self {
            Picker::Turns { next } => PickerState::Turns { next: *next },
            Picker::Draws(draws) => {
                let mut before = DrawState::of(&draws.generator);
                // A draw is one word, so where the block began follows from its length.
                before.words_drawn -= draws.block.len() as u64;
                PickerState::Draws {
                    draws: before,
                    used: draws.used,
                }
            }
        }
    }

    fn load(&mut self, state: &PickerState, sources: usize) -> Result<(), IterableError> {
        match (self, state) {
            (Picker::Turns { next }, PickerState::Turns { next: saved }) if *saved < sources.max(1) => {
                *next = *saved
            }
            (Picker::Draws(draws), PickerState::Draws { draws: before, used }) if *used <= DRAWS_AT_ONCE => {
                before.apply(&mut draws.generator);
                draws.block.clear();
                draws.used = *used;
                if *used > 0 {
                    draws.block = draws
                        .generator
                        .choice_weighted(&draws.probabilities, DRAWS_AT_ONCE)?;
                }
            }
            _ => return Err(IterableError::State("its mix alternates otherwise".to_string())),
        }
        Ok(())
    }
}
