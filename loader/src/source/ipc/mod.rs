//! The structure of Arrow IPC files, read without touching token data.

mod batch;
mod column;
pub(crate) mod columns;
mod file_format;
pub(crate) mod layout;
mod walk;
mod window;

pub(crate) use columns::{Column, ColumnKind, Columns, ListKind};
pub(crate) use layout::{
    BatchLayout, Choose, FileLayout, FirstNull, IpcFormat, Lengths, RawBatch, RawBuffer, Rows,
};
pub(crate) use walk::read_layout;
