//! The Python classes for the ends of channels.

use pyo3::exceptions::{PyStopIteration, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use super::coroutine::Coroutine;
use super::{Raise, ReceiveError, Receiver, SendError, Sender, blocking, channel};
use crate::value::{Limits, Value};

pyo3::create_exception!(pelton, ChannelClosed, pyo3::exceptions::PyEOFError, "The channel is closed.");

fn closed() -> PyErr {
    ChannelClosed::new_err("the channel is closed")
}

fn closed_later() -> Raise {
    Raise::new("pelton.ChannelClosed", "the channel is closed")
}

fn value_of(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    Ok(Value::from_python(object, &Limits::DEFAULT)?)
}

/// Return the two ends of a new channel of at most `bound` values.
#[pyfunction]
#[pyo3(name = "channel")]
pub(crate) fn make_channel(bound: usize) -> PyResult<(SenderEnd, ReceiverEnd)> {
    if bound == 0 {
        return Err(PyValueError::new_err("the bound of a channel must be at least 1"));
    }
    let (sender, receiver) = channel(bound);
    Ok((SenderEnd(sender), ReceiverEnd(receiver)))
}

/// The sending end of a channel.
#[pyclass(frozen, name = "Sender", module = "pelton")]
pub(crate) struct SenderEnd(pub(crate) Sender);

#[pymethods]
impl SenderEnd {
    /// Send a value. Block until there is room, or for at most timeout seconds.
    #[pyo3(signature = (value, timeout = None))]
    fn send(&self, value: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let py = value.py();
        let value = match self.0.try_send(value_of(value)?) {
            Ok(()) => return Ok(()),
            Err(SendError::Closed(_)) => return Err(closed()),
            Err(SendError::Full(value)) => value,
        };
        match blocking::wait_for_python(py, "Sender.send", "asend", timeout, self.0.send(value))? {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(closed()),
            None => Err(PyTimeoutError::new_err("the channel is full")),
        }
    }

    /// Send a value. Wait for room asynchronously.
    fn asend(&self, value: &Bound<'_, PyAny>) -> PyResult<Coroutine> {
        let (sender, value) = (self.0.clone(), value_of(value)?);
        let sending = async move { sender.send(value).await.map(Value::from).map_err(|_| closed_later()) };
        Ok(Coroutine::new("Sender.asend", Box::pin(sending)))
    }

    /// Send a value if there is room. Return whether it was sent.
    fn try_send(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        match self.0.try_send(value_of(value)?) {
            Ok(()) => Ok(true),
            Err(SendError::Full(_)) => Ok(false),
            Err(SendError::Closed(_)) => Err(closed()),
        }
    }

    /// Close the channel. Values already sent can still be received.
    fn close(&self) {
        self.0.close();
    }

    /// Whether the channel is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Maximum number of queued values.
    #[getter]
    fn bound(&self) -> usize {
        self.0.bound()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Without this, an empty channel would be false.
    fn __bool__(&self) -> bool {
        true
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.0.close();
    }
}

/// The receiving end of a channel.
#[pyclass(frozen, name = "Receiver", module = "pelton")]
pub(crate) struct ReceiverEnd(pub(crate) Receiver);

#[pymethods]
impl ReceiverEnd {
    /// Return the next value. Block until there is one, or for at most timeout seconds.
    #[pyo3(signature = (timeout = None))]
    fn receive<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        match self.next(py, timeout)? {
            Ok(value) => Ok(value),
            Err(ReceiveError::Closed) => Err(closed()),
            Err(ReceiveError::Empty) => Err(PyTimeoutError::new_err("the channel is empty")),
        }
    }

    /// Return the next value. Wait for it asynchronously.
    fn areceive(&self) -> Coroutine {
        let receiver = self.0.clone();
        let receiving = async move { receiver.receive().await.ok_or_else(closed_later) };
        Coroutine::new("Receiver.areceive", Box::pin(receiving))
    }

    /// Return the next value, or the default if there is none.
    #[pyo3(signature = (default = None))]
    fn try_receive<'py>(
        &self,
        py: Python<'py>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.0.try_receive() {
            Ok(value) => Ok(Some(value.to_python(py)?)),
            Err(ReceiveError::Empty) => Ok(default),
            Err(ReceiveError::Closed) => Err(closed()),
        }
    }

    /// Close the channel. Values already sent can still be received.
    fn close(&self) {
        self.0.close();
    }

    /// Whether the channel is closed. There may still be values in it.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Maximum number of queued values.
    #[getter]
    fn bound(&self) -> usize {
        self.0.bound()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.next(py, None)? {
            Ok(value) => Ok(value),
            Err(_) => Err(PyStopIteration::new_err(())),
        }
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__(&self) -> Coroutine {
        let receiver = self.0.clone();
        let receiving = async move { receiver.receive().await.ok_or_else(|| Raise::new("StopAsyncIteration", "")) };
        Coroutine::new("Receiver.__anext__", Box::pin(receiving))
    }
}

impl ReceiverEnd {
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Result<Bound<'py, PyAny>, ReceiveError>> {
        let value = match self.0.try_receive() {
            Ok(value) => value,
            Err(ReceiveError::Closed) => return Ok(Err(ReceiveError::Closed)),
            Err(ReceiveError::Empty) => {
                let next = blocking::wait_for_python(py, "Receiver.receive", "areceive", timeout, self.0.receive())?;
                match next {
                    Some(Some(value)) => value,
                    Some(None) => return Ok(Err(ReceiveError::Closed)),
                    None => return Ok(Err(ReceiveError::Empty)),
                }
            }
        };
        Ok(Ok(value.to_python(py)?))
    }
}
