//! TensorBoard event files, as far as scalars need them.
//!
//! Format: TFRecord frames (little-endian length, masked CRC-32C of it, payload, masked CRC-32C of the payload) that
//! hold `tensorboard.Event` messages in protobuf encoding. Field numbers are those of TensorBoard's `event.proto` and
//! `summary.proto` (2.20). Each record is written at once, so that a crash loses at most the record being written.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// An event file open for writing.
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
    record: Vec<u8>,
}

impl EventWriter {
    /// Creates `folder/events.out.tfevents.<seconds>.<host>`. `purge_from` tells TensorBoard to forget events of earlier
    /// files from that step on: what a resumed run writes again.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(folder: &Path, purge_from: Option<u64>) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let seconds = now();
        let path = folder.join(format!(
            "events.out.tfevents.{}.ceteris.{}",
            seconds as u64,
            std::process::id()
        ));
        let mut writer = EventWriter {
            file: File::create(&path)?,
            path,
            record: Vec::new(),
        };
        let mut event = Vec::new();
        double(&mut event, 1, seconds);
        bytes(&mut event, 3, b"brain.Event:2");
        writer.put(&event)?;
        if let Some(step) = purge_from {
            let mut session = Vec::new();
            varint_field(&mut session, 1, 1); // SessionLog.status = START
            let mut event = Vec::new();
            double(&mut event, 1, seconds);
            varint_field(&mut event, 2, step);
            bytes(&mut event, 7, &session);
            writer.put(&event)?;
        }
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes scalars of one step.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in values {
            let mut entry = Vec::new();
            bytes(&mut entry, 1, tag.as_bytes());
            key(&mut entry, 2, 5);
            entry.extend((*value as f32).to_le_bytes());
            bytes(&mut summary, 1, &entry);
        }
        let mut event = Vec::new();
        double(&mut event, 1, now());
        varint_field(&mut event, 2, step);
        bytes(&mut event, 5, &summary);
        self.put(&event)
    }

    fn put(&mut self, event: &[u8]) -> io::Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        self.record.clear();
        self.record.extend(length);
        self.record.extend(masked_crc(&length).to_le_bytes());
        self.record.extend(event);
        self.record.extend(masked_crc(event).to_le_bytes());
        self.file.write_all(&self.record)
    }
}

fn now() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn key(out: &mut Vec<u8>, field: u64, wire: u64) {
    varint(out, field << 3 | wire);
}

fn varint_field(out: &mut Vec<u8>, field: u64, value: u64) {
    key(out, field, 0);
    varint(out, value);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    key(out, field, 1);
    out.extend(value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(out, field, 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

/// CRC-32C (Castagnoli), bit by bit over a table of 256.
fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0u32; 256];
        let mut i = 0;
        while i < 256 {
            let mut crc = i as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 {
                    crc >> 1 ^ 0x82f6_3b78
                } else {
                    crc >> 1
                };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !data.iter().fold(u32::MAX, |crc, &b| {
        TABLE[((crc ^ u32::from(b)) & 0xff) as usize] ^ crc >> 8
    })
}

fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-32C.
    #[test]
    fn crc_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn records_are_framed() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path(), Some(7)).unwrap();
        writer.scalars(300, &[("loss", 2.5), ("lr", 1e-3)]).unwrap();
        let data = std::fs::read(writer.path()).unwrap();
        let (mut at, mut records) = (0, Vec::new());
        while at < data.len() {
            let length = u64::from_le_bytes(data[at..at + 8].try_into().unwrap()) as usize;
            let crc = u32::from_le_bytes(data[at + 8..at + 12].try_into().unwrap());
            assert_eq!(crc, masked_crc(&data[at..at + 8]));
            let payload = &data[at + 12..at + 12 + length];
            let crc = u32::from_le_bytes(data[at + 12 + length..at + 16 + length].try_into().unwrap());
            assert_eq!(crc, masked_crc(payload));
            records.push(payload.to_vec());
            at += 16 + length;
        }
        assert_eq!(records.len(), 3);
        assert!(records[0].ends_with(b"brain.Event:2"));
        assert!(records[2].windows(4).any(|w| w == b"loss"));
        assert!(records[2].windows(4).any(|w| w == 2.5f32.to_le_bytes()));
    }
}
