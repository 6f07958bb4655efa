//! The loader runtime: assembles the micro-steps of an order ahead of the consumer and delivers them in order.
//!
//! Orders are random access, so workers share no cursor: worker `w` of `N` assembles micro-steps `w, w + N, …` straight
//! from the source into a ring of reused buffers. Worker count, prefetch, timing and restarts cannot change the stream.
//!
//! Everything lives in one process and its threads: no fork, no shared-memory segment, nothing in `/dev/shm`.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use ceteris_loader::pipeline::{Loader, LoaderError, LoaderOptions};
//! # fn run(source: Arc<dyn ceteris_loader::source::Source>, order: Arc<dyn ceteris_samplers::Order>)
//! #     -> Result<(), LoaderError> {
//! let mut loader = Loader::new(source, order, LoaderOptions { epochs: Some(1), ..LoaderOptions::new(2048) })?;
//! while let Some(batch) = loader.next_batch()? {
//!     for micro_batch in batch.micro_batches() {
//!         println!("step {} rank {}: rows {:?}", batch.step().step, micro_batch.rank, micro_batch.rows);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod batch;
mod buffer;
mod documents;
mod elastic;
mod epochs;
mod error;
mod loader;
pub mod measure;
mod metrics;
mod options;
mod page_in;
mod ring;
mod signals;
mod stall;
mod state;
mod worker;

pub use batch::{Batch, BatchBuffer, BatchShape, BatchStep, MicroBatch};
pub use buffer::{AllocationError, BUFFER_ALIGN, BufferAllocator, BufferMemory, PlainMemory};
pub use documents::{DocumentRule, Marker};
pub use elastic::ElasticReport;
pub use error::{LoaderError, SampleAt, StepAt};
pub use loader::Loader;
pub use metrics::{BatchMetrics, LoaderMetrics};
pub use options::{DEFAULT_PREFETCH, DEFAULT_WORKERS, LoaderOptions, Notice, NoticeSink, PageIn, Ranks};
pub use signals::StopSignal;
pub use state::{DatasetIdentity, Difference, LoaderState, STATE_VERSION, SourceCount, StateError};
