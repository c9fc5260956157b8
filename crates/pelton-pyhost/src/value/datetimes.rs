//! Conversion of dates and times to and from Python.

use pyo3::prelude::*;
use pyo3::types::{
    PyDate, PyDateAccess, PyDateTime, PyDelta, PyDeltaAccess, PyString, PyTime, PyTimeAccess, PyTzInfo, PyTzInfoAccess,
};

use super::error::lossy_text;
use super::from_python::raised;
use super::{ConversionError, Date, DateTime, Time, TimeDelta, Value, Zone};

type Result<T> = std::result::Result<T, ConversionError>;

/// Converts a date, time or duration; returns `None` for objects of other types.
pub(super) fn from_python(object: &Bound<'_, PyAny>) -> Result<Option<Value>> {
    if let Ok(value) = object.cast::<PyDateTime>() {
        let date = date_of(value)?;
        let time = finish(time_of(value)?, value.get_fold(), object, value.get_tzinfo())?;
        return Ok(Some(Value::DateTime(Box::new(DateTime::new(date, time)))));
    }
    if let Ok(value) = object.cast::<PyDate>() {
        return Ok(Some(Value::Date(date_of(value)?)));
    }
    if let Ok(value) = object.cast::<PyTime>() {
        let time = finish(time_of(value)?, value.get_fold(), object, value.get_tzinfo())?;
        return Ok(Some(Value::Time(Box::new(time))));
    }
    if let Ok(value) = object.cast::<PyDelta>() {
        return Ok(Some(Value::TimeDelta(delta_of(value)?)));
    }
    Ok(None)
}

fn date_of(date: &impl PyDateAccess) -> Result<Date> {
    Date::new(date.get_year(), date.get_month().into(), date.get_day().into())
}

fn time_of(time: &impl PyTimeAccess) -> Result<Time> {
    Time::new(time.get_hour().into(), time.get_minute().into(), time.get_second().into(), time.get_microsecond())
}

fn delta_of(delta: &impl PyDeltaAccess) -> Result<TimeDelta> {
    TimeDelta::new(delta.get_days().into(), delta.get_seconds().into(), delta.get_microseconds().into())
}

/// Adds fold and zone to a time, that of `object`. A zone written in Python may run arbitrary code.
fn finish(time: Time, fold: bool, object: &Bound<'_, PyAny>, zone: Option<Bound<'_, PyTzInfo>>) -> Result<Time> {
    let py = object.py();
    let time = if fold { time.folded() } else { time };
    let Some(zone) = zone else { return Ok(time) };
    let offset = object.call_method0(pyo3::intern!(py, "utcoffset")).map_err(|error| raised(py, error))?;
    let offset = offset.cast::<PyDelta>().ok().map(delta_of).transpose()?;
    let key = if is_named(&zone).map_err(|error| raised(py, error))? { key_of(&zone) } else { None };
    match (key, offset) {
        (Some(key), offset) => time.in_zone(Zone::Named { key, offset }),
        (None, Some(offset)) => time.in_zone(Zone::Offset(offset)),
        // Python treats it like a time without a zone.
        (None, None) => Ok(time),
    }
}

/// Returns whether it is a `zoneinfo.ZoneInfo`, which can only exist if its module was imported.
fn is_named(zone: &Bound<'_, PyTzInfo>) -> PyResult<bool> {
    let py = zone.py();
    let modules = py.import("sys")?.getattr("modules")?;
    match modules.get_item("zoneinfo") {
        Ok(module) => zone.is_instance(&module.getattr("ZoneInfo")?),
        Err(_) => Ok(false),
    }
}

/// Returns the key of a zone; zones read from a file may have none.
fn key_of(zone: &Bound<'_, PyTzInfo>) -> Option<String> {
    let key = zone.getattr("key").ok()?;
    key.cast::<PyString>().ok().map(lossy_text)
}

pub(super) fn date<'py>(py: Python<'py>, date: &Date) -> PyResult<Bound<'py, PyDate>> {
    PyDate::new(py, date.year(), date.month() as u8, date.day() as u8)
}

pub(super) fn time<'py>(py: Python<'py>, time: &Time) -> PyResult<Bound<'py, PyTime>> {
    let (hour, minute, second) = (time.hour() as u8, time.minute() as u8, time.second() as u8);
    let zone = zone(py, time.zone())?;
    PyTime::new_with_fold(py, hour, minute, second, time.microsecond(), zone.as_ref(), time.is_folded())
}

pub(super) fn date_time<'py>(py: Python<'py>, value: &DateTime) -> PyResult<Bound<'py, PyDateTime>> {
    let (date, time) = (value.date(), value.time());
    let (hour, minute, second) = (time.hour() as u8, time.minute() as u8, time.second() as u8);
    let zone = zone(py, time.zone())?;
    PyDateTime::new_with_fold(
        py,
        date.year(),
        date.month() as u8,
        date.day() as u8,
        hour,
        minute,
        second,
        time.microsecond(),
        zone.as_ref(),
        time.is_folded(),
    )
}

pub(super) fn time_delta<'py>(py: Python<'py>, delta: &TimeDelta) -> PyResult<Bound<'py, PyDelta>> {
    PyDelta::new(py, delta.days(), delta.seconds(), delta.microseconds(), true)
}

fn zone<'py>(py: Python<'py>, zone: Option<&Zone>) -> PyResult<Option<Bound<'py, PyTzInfo>>> {
    Ok(Some(match zone {
        None => return Ok(None),
        Some(Zone::Offset(offset)) if *offset == TimeDelta::default() => PyTzInfo::utc(py)?.to_owned(),
        Some(Zone::Offset(offset)) => PyTzInfo::fixed_offset(py, time_delta(py, offset)?)?,
        Some(Zone::Named { key, .. }) => PyTzInfo::timezone(py, key.as_str())?,
    }))
}
