//! Length-prefixed messages (gRPC over HTTP/2, "Length-Prefixed-Message").

use std::io::Read as _;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use flate2::read::GzDecoder;

/// Bytes before each message: a flag for compression and the length.
const PREFIX: usize = 5;

/// The coding of compressed messages (`grpc-encoding`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageEncoding {
    /// No message is compressed.
    #[default]
    Identity,
    /// Messages may be compressed with gzip.
    Gzip,
}

impl MessageEncoding {
    /// Returns the coding of a field. `None`: it is not supported.
    pub fn parse(field: Option<&[u8]>) -> Option<Self> {
        match field {
            None | Some(b"identity") => Some(Self::Identity),
            Some(b"gzip") => Some(Self::Gzip),
            Some(_) => None,
        }
    }
}

/// Frames that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A message is longer than the limit, in bytes, compressed or not.
    #[error("the message is longer than {0} bytes")]
    TooLong(u64),
    /// A message is compressed though no coding was agreed on, or broken.
    #[error("the message is compressed in another way than grpc-encoding says")]
    Compression,
    /// The flag is neither 0 nor 1, or bytes are missing at the end.
    #[error("the framing of the message is broken")]
    Framing,
}

/// Returns a message with its prefix, uncompressed.
pub fn encode_frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    // No message is longer than the limits of bodies, which are far below.
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// A reader of the messages of one direction of a call.
#[derive(Debug)]
pub struct FrameReader {
    buffer: BytesMut,
    encoding: MessageEncoding,
    limit: u64,
}

impl FrameReader {
    /// Creates a reader of messages of at most `limit` bytes each.
    pub fn new(encoding: MessageEncoding, limit: u64) -> Self {
        let buffer = BytesMut::new();
        Self {
            buffer,
            encoding,
            limit,
        }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the bytes that are held.
    pub fn held(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next whole message; `None` if it is not complete.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn next_message(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(prefix) = self.buffer.get(..PREFIX) else {
            return Ok(None);
        };
        let (flag, length) = (
            prefix[0],
            u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]),
        );
        if flag > 1 {
            return Err(FrameError::Framing);
        }
        if u64::from(length) > self.limit {
            return Err(FrameError::TooLong(self.limit));
        }
        let end = PREFIX + length as usize;
        if self.buffer.len() < end {
            return Ok(None);
        }
        let mut message = self.buffer.split_to(end);
        message.advance(PREFIX);
        match (flag, self.encoding) {
            (0, _) => Ok(Some(message.freeze())),
            (_, MessageEncoding::Gzip) => self.inflate(&message).map(Some),
            (_, MessageEncoding::Identity) => Err(FrameError::Compression),
        }
    }

    /// Returns the message of a body that has exactly one.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn single_message(mut self) -> Result<Bytes, FrameError> {
        let message = self.next_message()?.ok_or(FrameError::Framing)?;
        match self.buffer.is_empty() {
            true => Ok(message),
            false => Err(FrameError::Framing),
        }
    }

    fn inflate(&self, message: &[u8]) -> Result<Bytes, FrameError> {
        let mut inflated = Vec::new();
        let mut reader = GzDecoder::new(message).take(self.limit + 1);
        reader
            .read_to_end(&mut inflated)
            .map_err(|_| FrameError::Compression)?;
        match inflated.len() as u64 > self.limit {
            true => Err(FrameError::TooLong(self.limit)),
            false => Ok(inflated.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn compressed(message: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(message).unwrap();
        let message = encoder.finish().unwrap();
        let mut frame = encode_frame(&message).to_vec();
        frame[0] = 1;
        frame
    }

    #[test]
    fn messages_are_read_however_they_are_cut() {
        let frames = [
            encode_frame(b"one"),
            encode_frame(b""),
            encode_frame(b"three"),
        ]
        .concat();
        for size in 1..frames.len() {
            let mut reader = FrameReader::new(MessageEncoding::Identity, 5);
            let mut read = Vec::new();
            for piece in frames.chunks(size) {
                reader.push(piece);
                while let Some(message) = reader.next_message().unwrap() {
                    read.push(message);
                }
            }
            assert_eq!(read, [&b"one"[..], b"", b"three"]);
            assert_eq!(reader.held(), 0);
        }
    }

    #[test]
    fn a_message_is_bounded_compressed_or_not() {
        let single = |bytes: &[u8], encoding| {
            let mut reader = FrameReader::new(encoding, 1000);
            reader.push(bytes);
            reader.single_message()
        };
        let of = |length: usize| vec![b'a'; length];
        assert_eq!(
            single(&encode_frame(&of(1000)), MessageEncoding::Identity).unwrap(),
            of(1000)
        );
        assert_eq!(
            single(&encode_frame(&of(1001)), MessageEncoding::Identity),
            Err(FrameError::TooLong(1000))
        );
        assert_eq!(
            single(&compressed(&of(1000)), MessageEncoding::Gzip).unwrap(),
            of(1000)
        );
        let bomb = compressed(&of(1_000_000));
        assert!(bomb.len() < 2000, "{}", bomb.len());
        let mut reader = FrameReader::new(MessageEncoding::Gzip, 2000);
        reader.push(&bomb);
        assert_eq!(reader.single_message(), Err(FrameError::TooLong(2000)));
        assert_eq!(
            single(&compressed(b"a"), MessageEncoding::Identity),
            Err(FrameError::Compression)
        );
    }

    #[test]
    fn broken_frames_are_refused() {
        let single = |bytes: &[u8]| {
            let mut reader = FrameReader::new(MessageEncoding::Gzip, 1000);
            reader.push(bytes);
            reader.single_message()
        };
        assert_eq!(single(&[2, 0, 0, 0, 0]), Err(FrameError::Framing));
        assert_eq!(single(&[0, 0, 0, 0]), Err(FrameError::Framing));
        assert_eq!(single(&[0, 0, 0, 0, 2, 1]), Err(FrameError::Framing));
        assert_eq!(single(&[0, 0, 0, 0, 0, 0]), Err(FrameError::Framing));
        assert_eq!(single(&[1, 0, 0, 0, 1, 7]), Err(FrameError::Compression));
    }
}
