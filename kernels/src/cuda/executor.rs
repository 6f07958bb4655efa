//! The executor: memory, lowered sections, graphs, data in and out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use cudarc::driver::{result, sys};

use super::batch_invariant::Probe;
use super::call::{Modules, Program, fill_random};
use super::compile::compile_all;
use super::device::{Block, Device, Timer};
use super::documents::{DocumentTables, rows_by_token};
use super::error::{CudaError, Doing};
use super::listing::list;
use super::lower::{Lowering, Places};
use super::placement::{ids_bytes, layout, place, saved_solutions, solutions, tables};
use super::product::{AlgorithmRecord, Products};
use super::staging::{Plain, Staging, bytes_of};
use super::{CudaOptions, Precision, Source};
use crate::backend::{ExecError, Executor, Memory, OpTime};
use crate::plan::{BufferId, Plan, Role, Section};

/// Writes of ids that may be on their way at once.
const ID_SLOTS: usize = 6;
/// Bytes of a write that counts as small, and how many may be on their way.
const SMALL: usize = 256;
const SMALL_SLOTS: usize = 64;

/// Sections that differ in the first micro-batch of a step.
const FIRST: [Section; 2] = [Section::Forward, Section::Backward];

/// One section, lowered.
#[derive(Debug)]
struct Lowered {
    program: Program,
    /// Calls of each operator.
    ranges: Vec<Range<usize>>,
    graph: Option<Graph>,
    ran: bool,
}

/// An instantiated graph.
#[derive(Debug)]
struct Graph(sys::CUgraphExec);

// SAFETY: a graph may be launched from any thread while its context is current.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `capture`, destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// Walks a plan on one device.
#[derive(Debug)]
pub struct CudaExecutor {
    // Dropped first to last: graphs and programs before the modules and memory they refer to.
    /// Every section, then `Forward` and `Backward` of the first micro-batch of a step, where that differs.
    sections: Vec<Lowered>,
    /// `Begin` has run and no `Backward` since.
    first: bool,
    products: Products,
    modules: Modules,
    blocks: [Block; 4],
    places: Places,
    plan: Plan,
    precision: Precision,
    memory: Memory,
    /// Page-locked slots for ids and their tables, and for a few values.
    ids: Staging,
    small: Staging,
    /// Documents as they were written last: most runs write the same again and again.
    documents: BTreeMap<BufferId, Vec<i32>>,
    /// Weights whose bf16 copy is older than the weight.
    stale: BTreeSet<BufferId>,
    algorithms: AlgorithmRecord,
    notes: Vec<String>,
    device: Device,
}

impl CudaExecutor {
    /// Plans memory, compiles kernels (cached), chooses products' algorithms: from `algorithms` where it has them for
    /// this device and library, else by measurement.
    ///
    /// # Errors
    /// [`CudaError`]: missing libraries, sizes the kernels do not cover (with the allowed values), too little memory.
    pub fn new(
        plan: Plan,
        options: impl Into<CudaOptions>,
        device: Device,
        mut algorithms: AlgorithmRecord,
    ) -> Result<Self, CudaError> {
        let options = options.into();
        let precision = options.precision;
        device.bind()?;
        let (units, _) = list(&plan, options, device.shared_memory())?;
        let layout = layout(&plan, precision);
        let persistent = Block::zeroed(&device, layout.persistent as u64)?;
        let arena = Block::zeroed(&device, layout.arena as u64)?;
        let sizes = tables(&plan, precision);
        let saved = saved_solutions(&plan, precision);
        let (mut places, side) = place(&plan, &layout, &sizes, persistent.pointer(), arena.pointer());
        places.saved = solutions(&plan, precision, &saved, &places.buffers);
        let side = Block::zeroed(&device, side)?;
        places.move_side(side.pointer());
        compile_all(&units, &device.arch())?;
        let mut products = Products::new(&device)?;
        let mut modules = Modules::new(&device);

        let mut lowering = Lowering::new(&plan, options, &places, &mut modules, &mut products);
        let mut lists = Vec::new();
        let first: &[Section] = if lowering.has_first() { &FIRST } else { &[] };
        for (index, &section) in Section::ALL.iter().chain(first).enumerate() {
            if index == Section::ALL.len() {
                lowering.begin_step();
            }
            let mut ranges = Vec::new();
            for op in plan.ops(section) {
                let first = lowering.calls.len();
                lowering.lower(op)?;
                ranges.push(first..lowering.calls.len());
            }
            lists.push((std::mem::take(&mut lowering.calls), ranges));
        }
        let (operands, scratch_bytes) = (std::mem::take(&mut lowering.operands), lowering.scratch);
        let scratch = Block::zeroed(&device, scratch_bytes)?;
        let random = modules.kernel(Source::Reduce, &precision.defines(), "fill_random", 0)?;
        let fills = [&persistent, &arena, &side, &scratch]
            .map(|b| fill_random(random, b.pointer(), b.bytes()))
            .to_vec();
        Program::new(fills, 0).issue(0..4, device.stream(), &products)?;
        let probe = Probe::new(&mut modules, precision)?;
        let notes = products.choose(&operands, scratch.pointer(), &probe, &device, &mut algorithms)?;
        device.synchronize()?;
        for block in [&persistent, &arena, &side, &scratch] {
            block.fill(0)?;
        }

        let sections = lists
            .into_iter()
            .map(|(calls, ranges)| Lowered {
                program: Program::new(calls, scratch.pointer()),
                ranges,
                graph: None,
                ran: false,
            })
            .collect();
        let memory = Memory {
            persistent: (persistent.bytes() + side.bytes()) as usize,
            arena: (arena.bytes() + scratch.bytes()) as usize,
            arena_without_reuse: layout.arena_without_reuse,
        };
        let stale = sizes.copies;
        let ids = Staging::new(ids_bytes(&plan), ID_SLOTS)?;
        let small = Staging::new(SMALL, SMALL_SLOTS)?;
        let blocks = [persistent, arena, side, scratch];
        let mut executor = CudaExecutor {
            sections,
            first: false,
            products,
            modules,
            blocks,
            places,
            plan,
            precision,
            memory,
            ids,
            small,
            documents: BTreeMap::new(),
            stale,
            algorithms,
            notes,
            device,
        };
        // Until the host says otherwise every sequence is one document.
        let unpacked = executor.plan.geometry.unpacked_cu_seqlens();
        for id in sizes.documents {
            executor.put_ids(id, &unpacked)?;
        }
        Ok(executor)
    }

    /// The products' algorithms, to be stored with a run and given to the executor that continues it.
    pub fn algorithms(&self) -> &AlgorithmRecord {
        &self.algorithms
    }

    /// What a user should be told about how the executor was made.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn address(&self, id: BufferId, offset: usize) -> u64 {
        let role = self.plan.buffer(id).role;
        self.places.buffers[id.index()] + offset as u64 * self.precision.bytes(role)
    }

    fn check(&self, id: BufferId, offset: usize, count: usize, moves: &'static str) -> Result<(), ExecError> {
        let b = self.plan.buffer(id);
        if b.role == Role::Ids {
            return Err(ExecError::Kind {
                buffer: b.name.clone(),
                holds: "ids",
                moves,
            });
        }
        if offset.checked_add(count).is_none_or(|end| end > b.len()) {
            return Err(ExecError::Range {
                buffer: b.name.clone(),
                len: b.len(),
                offset,
                count,
            });
        }
        if !b.role.persistent() && !b.keep && !b.input {
            return Err(ExecError::NotKept {
                buffer: b.name.clone(),
            });
        }
        Ok(())
    }

    /// Brings the bf16 copies of weights written by the host up to date.
    fn refresh_copies(&mut self) -> Result<(), CudaError> {
        if self.stale.is_empty() {
            return Ok(());
        }
        let kernel = self
            .modules
            .kernel(Source::Reduce, &self.precision.defines(), "copy_bf16", 0)?;
        let mut calls = Vec::new();
        for id in std::mem::take(&mut self.stale) {
            let n = self.plan.buffer(id).len() as u64;
            if let Some(&copy) = self.places.copies.get(&id) {
                calls.push(super::call::copy_bf16(
                    kernel,
                    self.places.buffers[id.index()],
                    copy,
                    n,
                ));
            }
        }
        let mut program = Program::new(calls, 0);
        program.issue(0..program.len(), self.device.stream(), &self.products)?;
        // The program's argument cells are read when a launch is made, not later: it may go now.
        Ok(())
    }

    /// Which of `sections` runs now for `section`, and what that means for the next.
    fn turn(&mut self, section: Section) -> usize {
        let first = FIRST.iter().position(|&s| self.first && s == section);
        match section {
            Section::Begin => self.first = self.sections.len() > Section::ALL.len(),
            Section::Backward => self.first = false,
            _ => {}
        }
        first.map_or(section as usize, |i| Section::ALL.len() + i)
    }

    fn start(&mut self, section: Section) -> Result<(), CudaError> {
        let index = self.turn(section);
        self.device.bind()?;
        self.refresh_copies()?;
        self.launch(index)
    }

    fn launch(&mut self, index: usize) -> Result<(), CudaError> {
        let stream = self.device.stream();
        let lowered = &mut self.sections[index];
        if let Some(graph) = &lowered.graph {
            // SAFETY: the graph was captured from this program, whose memory and modules are alive.
            return unsafe { result::graph::launch(graph.0, stream) }.doing(|| "launching a graph".into());
        }
        if lowered.ran && lowered.program.len() > 0 {
            lowered.graph = Some(capture(&mut lowered.program, stream, &self.products)?);
            return self.launch(index);
        }
        // The first run goes call by call, so that libraries set themselves up outside of a capture.
        lowered.ran = true;
        lowered
            .program
            .issue(0..lowered.program.len(), stream, &self.products)
    }

    fn times(&mut self, section: Section) -> Result<Vec<OpTime>, CudaError> {
        self.device.bind()?;
        self.refresh_copies()?;
        let stream = self.device.stream();
        let index = self.turn(section);
        let lowered = &mut self.sections[index];
        let mut timers = Vec::new();
        for range in lowered.ranges.clone() {
            let timer = Timer::new()?;
            timer.start(stream)?;
            lowered.program.issue(range, stream, &self.products)?;
            timer.stop(stream)?;
            timers.push(timer);
        }
        let mut times = Vec::new();
        for (index, timer) in timers.iter().enumerate() {
            let time = Duration::from_secs_f64(f64::from(timer.milliseconds()?) / 1e3);
            times.push(OpTime { section, index, time });
        }
        Ok(times)
    }

    fn digest_on_device(&mut self, buffers: &[BufferId]) -> Result<u64, CudaError> {
        self.device.bind()?;
        let kernel = self
            .modules
            .kernel(Source::Reduce, &self.precision.defines(), "digest_words", 0)?;
        let word = Block::zeroed(&self.device, 8)?;
        let calls = buffers
            .iter()
            .map(|&id| {
                let b = self.plan.buffer(id);
                let bytes = b.len() as u64 * self.precision.bytes(b.role);
                let seed = (id.index() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                super::call::digest(
                    kernel,
                    self.places.buffers[id.index()],
                    bytes,
                    seed,
                    word.pointer(),
                )
            })
            .collect();
        let mut program = Program::new(calls, 0);
        program.issue(0..program.len(), self.device.stream(), &self.products)?;
        let mut out = [0u64];
        self.device.download(&mut out, word.pointer(), "a digest")?;
        Ok(out[0])
    }

    /// Runs a section and times each call of each operator: position in [`Plan::ops`], the kernel's name (`product` for
    /// a matrix product, `clear` for a clearing), time.
    ///
    /// # Errors
    /// [`CudaError`]: a launch or the device failed.
    pub fn call_times(
        &mut self,
        section: Section,
    ) -> Result<Vec<(usize, &'static str, Duration)>, CudaError> {
        self.device.bind()?;
        self.refresh_copies()?;
        let stream = self.device.stream();
        let index = self.turn(section);
        let lowered = &mut self.sections[index];
        let mut timers = Vec::new();
        for (index, range) in lowered.ranges.clone().into_iter().enumerate() {
            for call in range {
                let timer = Timer::new()?;
                timer.start(stream)?;
                lowered.program.issue(call..call + 1, stream, &self.products)?;
                timer.stop(stream)?;
                timers.push((index, lowered.program.name(call), timer));
            }
        }
        timers
            .iter()
            .map(|(index, name, timer)| {
                let time = Duration::from_secs_f64(f64::from(timer.milliseconds()?) / 1e3);
                Ok((*index, *name, time))
            })
            .collect()
    }

    fn put_ids(&mut self, id: BufferId, values: &[i32]) -> Result<(), CudaError> {
        self.device.bind()?;
        let mut parts = vec![(self.places.buffers[id.index()], bytes_of(values))];
        let tables = match self.places.documents.get(&id).copied() {
            Some(_) if self.documents.get(&id).is_some_and(|last| last == values) => return Ok(()),
            Some(d) => Some((d, DocumentTables::new(values, self.plan.geometry.max_chunks()))),
            None => None,
        };
        if let Some((d, t)) = &tables {
            self.documents.insert(id, values.to_vec());
            parts.extend([
                (d.chunks, bytes_of(&t.chunks)),
                (d.docs, bytes_of(&t.docs)),
                (d.counts, bytes_of(&t.counts)),
                (d.start, bytes_of(&t.start)),
            ]);
        }
        let order = self
            .places
            .row_orders
            .get(&id)
            .map(|&at| (at, rows_by_token(values)));
        if let Some((at, order)) = &order {
            parts.push((*at, bytes_of(order)));
        }
        self.ids.send(&self.device, &parts)
    }

    /// Values to a place in a buffer: few of them without waiting for the stream.
    fn put<T: Plain>(&mut self, at: u64, values: &[T]) -> Result<(), CudaError> {
        if size_of_val(values) <= SMALL {
            return self.small.send(&self.device, &[(at, bytes_of(values))]);
        }
        self.device.upload(at, values, "values")
    }
}

/// Captures a program into a graph.
fn capture(program: &mut Program, stream: sys::CUstream, products: &Products) -> Result<Graph, CudaError> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: a live stream of the current context; the capture is ended below on every path.
    unsafe { result::stream::begin_capture(stream, mode) }.doing(|| "beginning a capture".into())?;
    let issued = program.issue(0..program.len(), stream, products);
    // SAFETY: ends the capture begun above.
    let graph = unsafe { result::stream::end_capture(stream) }.doing(|| "ending a capture".into());
    issued?;
    let graph = graph?;
    // SAFETY: a complete graph; the template is destroyed after instantiation, the instance lives on.
    unsafe {
        let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
        let _ = result::graph::destroy(graph);
        exec.map(Graph).doing(|| "instantiating a graph".into())
    }
}

impl Executor for CudaExecutor {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn write_ids(&mut self, buffer: BufferId, values: &[i32]) -> Result<(), ExecError> {
        crate::ids::check(&self.plan, buffer, values)?;
        Ok(self.put_ids(buffer, values)?)
    }

    fn write_f32(&mut self, buffer: BufferId, offset: usize, values: &[f32]) -> Result<(), ExecError> {
        self.check(buffer, offset, values.len(), "floats")?;
        let at = self.address(buffer, offset);
        self.device.bind()?;
        match self.precision.bytes(self.plan.buffer(buffer).role) {
            2 => {
                let v: Vec<half::bf16> = values.iter().map(|&x| half::bf16::from_f32(x)).collect();
                self.device.upload(at, &v, "values")?;
            }
            8 => {
                let v: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
                self.put(at, &v)?;
            }
            _ => self.put(at, values)?,
        }
        if self.places.copies.contains_key(&buffer) {
            self.stale.insert(buffer);
        }
        Ok(())
    }

    fn write_f64(&mut self, buffer: BufferId, offset: usize, values: &[f64]) -> Result<(), ExecError> {
        if self.precision.bytes(self.plan.buffer(buffer).role) != 8 {
            let v: Vec<f32> = values.iter().map(|&x| x as f32).collect();
            return self.write_f32(buffer, offset, &v);
        }
        self.check(buffer, offset, values.len(), "floats")?;
        let at = self.address(buffer, offset);
        self.device.bind()?;
        Ok(self.put(at, values)?)
    }

    fn read_f32(&mut self, buffer: BufferId, offset: usize, out: &mut [f32]) -> Result<(), ExecError> {
        self.check(buffer, offset, out.len(), "floats")?;
        let at = self.address(buffer, offset);
        self.device.bind()?;
        match self.precision.bytes(self.plan.buffer(buffer).role) {
            2 => {
                let mut v = vec![half::bf16::ZERO; out.len()];
                self.device.download(&mut v, at, "values")?;
                out.iter_mut().zip(v).for_each(|(o, x)| *o = x.to_f32());
            }
            8 => {
                let mut v = vec![0f64; out.len()];
                self.device.download(&mut v, at, "values")?;
                out.iter_mut().zip(v).for_each(|(o, x)| *o = x as f32);
            }
            _ => self.device.download(out, at, "values")?,
        }
        Ok(())
    }

    fn read_f64(&mut self, buffer: BufferId, offset: usize, out: &mut [f64]) -> Result<(), ExecError> {
        if self.precision.bytes(self.plan.buffer(buffer).role) != 8 {
            let mut v = vec![0f32; out.len()];
            self.read_f32(buffer, offset, &mut v)?;
            out.iter_mut().zip(v).for_each(|(o, x)| *o = f64::from(x));
            return Ok(());
        }
        self.check(buffer, offset, out.len(), "floats")?;
        let at = self.address(buffer, offset);
        self.device.bind()?;
        Ok(self.device.download(out, at, "values")?)
    }

    fn run(&mut self, section: Section) -> Result<(), ExecError> {
        // Reads go through the same stream, so returning before the device is done is as good as after.
        Ok(self.start(section)?)
    }

    fn profile(&mut self, section: Section) -> Result<Vec<OpTime>, ExecError> {
        Ok(self.times(section)?)
    }

    /// Formed on the device. Other bits give another digest but for one case in 2^64.
    fn digest(&mut self, buffers: &[BufferId]) -> Result<u64, ExecError> {
        for &id in buffers {
            self.check(id, 0, self.plan.buffer(id).len(), "floats")?;
        }
        Ok(self.digest_on_device(buffers)?)
    }

    fn memory(&self) -> Memory {
        self.memory
    }

    fn poison(&mut self) {
        let bound = self.device.bind().and_then(|()| self.device.synchronize());
        // All bits set is NaN in bf16 and fp32. Scratch memory is poisoned too. A device that fails here fails again,
        // with a message, at the next run.
        let _ = bound
            .and_then(|()| self.blocks[1].fill(0xff))
            .and_then(|()| self.blocks[3].fill(0xff));
    }
}
