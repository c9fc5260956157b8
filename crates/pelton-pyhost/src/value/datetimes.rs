//! Conversion of dates and times to and from Python.

use std::ffi::c_int;

use pyo3::ffi::{self, PyObject};

use super::error::lossy_text;
use super::{ConversionError, Date, DateTime, Time, TimeDelta, Value, Zone};
use pelton_cpython::object::{Owned, Raised, Result};

/// Makes sure that `datetime` is imported.
///
/// # Safety
/// The interpreter lock is held.
#[inline]
unsafe fn import() -> Result<()> {
    // SAFETY: the caller holds the lock. A failing import sets an exception.
    unsafe {
        if ffi::PyDateTimeAPI().is_null() {
            ffi::PyDateTime_IMPORT();
            if ffi::PyDateTimeAPI().is_null() {
                return Err(Raised);
            }
        }
    }
    Ok(())
}

/// Converts a date, time or duration; returns `None` for objects of other types.
///
/// # Safety
/// `object` is alive, and the interpreter lock is held.
pub(super) unsafe fn from_python(object: *mut PyObject) -> std::result::Result<Option<Value>, ConversionError> {
    // SAFETY: the caller guarantees that the object is alive. Each field is read only after a check of its type.
    unsafe {
        let raised = |error| ConversionError::raised(error);
        import().map_err(raised)?;
        if ffi::PyDateTime_Check(object) != 0 {
            let time = Time::new(
                ffi::PyDateTime_DATE_GET_HOUR(object) as u32,
                ffi::PyDateTime_DATE_GET_MINUTE(object) as u32,
                ffi::PyDateTime_DATE_GET_SECOND(object) as u32,
                ffi::PyDateTime_DATE_GET_MICROSECOND(object) as u32,
            )?;
            let fold = ffi::PyDateTime_DATE_GET_FOLD(object) != 0;
            let date = date_of(object)?;
            let time = finish(time, fold, object, ffi::PyDateTime_DATE_GET_TZINFO(object))?;
            return Ok(Some(Value::DateTime(Box::new(DateTime::new(date, time)))));
        }
        if ffi::PyDate_Check(object) != 0 {
            return Ok(Some(Value::Date(date_of(object)?)));
        }
        if ffi::PyTime_Check(object) != 0 {
            let time = Time::new(
                ffi::PyDateTime_TIME_GET_HOUR(object) as u32,
                ffi::PyDateTime_TIME_GET_MINUTE(object) as u32,
                ffi::PyDateTime_TIME_GET_SECOND(object) as u32,
                ffi::PyDateTime_TIME_GET_MICROSECOND(object) as u32,
            )?;
            let fold = ffi::PyDateTime_TIME_GET_FOLD(object) != 0;
            let time = finish(time, fold, object, ffi::PyDateTime_TIME_GET_TZINFO(object))?;
            return Ok(Some(Value::Time(Box::new(time))));
        }
        if ffi::PyDelta_Check(object) != 0 {
            return Ok(Some(Value::TimeDelta(delta_of(object)?)));
        }
        Ok(None)
    }
}

unsafe fn date_of(object: *mut PyObject) -> std::result::Result<Date, ConversionError> {
    // SAFETY: the caller has checked that it is a `date`.
    unsafe {
        let (month, day) = (ffi::PyDateTime_GET_MONTH(object) as u32, ffi::PyDateTime_GET_DAY(object) as u32);
        Date::new(ffi::PyDateTime_GET_YEAR(object), month, day)
    }
}

unsafe fn delta_of(object: *mut PyObject) -> std::result::Result<TimeDelta, ConversionError> {
    // SAFETY: the caller has checked that it is a `timedelta`.
    unsafe {
        let seconds = ffi::PyDateTime_DELTA_GET_SECONDS(object);
        let microseconds = ffi::PyDateTime_DELTA_GET_MICROSECONDS(object);
        TimeDelta::new(ffi::PyDateTime_DELTA_GET_DAYS(object).into(), seconds.into(), microseconds.into())
    }
}

/// Adds fold and zone to a time.
///
/// # Safety
/// `object` is a `datetime` or `time`, and `zone` its `tzinfo`; the interpreter lock is held.
unsafe fn finish(
    time: Time,
    fold: bool,
    object: *mut PyObject,
    zone: *mut PyObject,
) -> std::result::Result<Time, ConversionError> {
    // SAFETY: the caller keeps the object alive, and the object keeps its zone alive, even though a zone written in
    // Python may run arbitrary code.
    unsafe {
        let time = if fold { time.folded() } else { time };
        if zone == ffi::Py_None() {
            return Ok(time);
        }
        let raised = |error| ConversionError::raised(error);
        let offset = Owned::returned(ffi::PyObject_CallMethod(object, c"utcoffset".as_ptr(), std::ptr::null()));
        let offset = offset.map_err(raised)?;
        let offset = if offset.as_ptr() == ffi::Py_None() { None } else { Some(delta_of(offset.as_ptr())?) };
        let key = if is_named(zone).map_err(raised)? { key_of(zone) } else { None };
        match (key, offset) {
            (Some(key), offset) => time.in_zone(Zone::Named { key, offset }),
            (None, Some(offset)) => time.in_zone(Zone::Offset(offset)),
            // Python treats it like a time without a zone.
            (None, None) => Ok(time),
        }
    }
}

/// Returns whether it is a `zoneinfo.ZoneInfo`.
unsafe fn is_named(zone: *mut PyObject) -> Result<bool> {
    // SAFETY: the caller holds the lock and keeps the zone alive. A `ZoneInfo` can only exist if its module was
    // imported.
    unsafe {
        let modules = ffi::PyImport_GetModuleDict();
        let module = ffi::PyDict_GetItemString(modules, c"zoneinfo".as_ptr());
        if module.is_null() {
            return Ok(false);
        }
        // The dictionary may drop it while the attribute is looked up.
        let module = Owned::new_reference(module);
        let class = Owned::returned(ffi::PyObject_GetAttrString(module.as_ptr(), c"ZoneInfo".as_ptr()))?;
        match ffi::PyObject_IsInstance(zone, class.as_ptr()) {
            -1 => Err(Raised),
            is => Ok(is != 0),
        }
    }
}

/// Returns the key of a zone; zones read from a file may have none.
unsafe fn key_of(zone: *mut PyObject) -> Option<String> {
    // SAFETY: the caller holds the lock and keeps the zone alive.
    unsafe {
        let Some(key) = Owned::taken(ffi::PyObject_GetAttrString(zone, c"key".as_ptr())) else {
            ffi::PyErr_Clear();
            return None;
        };
        if ffi::PyUnicode_Check(key.as_ptr()) == 0 { None } else { lossy_text(key.into_ptr()) }
    }
}

/// # Safety
/// The interpreter lock is held. The same applies to the following functions.
pub(super) unsafe fn date(date: &Date) -> Result<Owned> {
    // SAFETY: the caller holds the lock. `Date` only holds valid dates.
    unsafe {
        import()?;
        Owned::returned(ffi::PyDate_FromDate(date.year(), date.month() as c_int, date.day() as c_int))
    }
}

/// # Safety
/// As above.
pub(super) unsafe fn time(time: &Time) -> Result<Owned> {
    // SAFETY: the caller holds the lock. `Time` only holds valid times, and `zone` is an owned reference.
    unsafe {
        import()?;
        let zone = zone(time.zone())?;
        let types = &*ffi::PyDateTimeAPI();
        Owned::returned((types.Time_FromTimeAndFold)(
            time.hour() as c_int,
            time.minute() as c_int,
            time.second() as c_int,
            time.microsecond() as c_int,
            zone.as_ptr(),
            time.is_folded().into(),
            types.TimeType,
        ))
    }
}

/// # Safety
/// As above.
pub(super) unsafe fn date_time(value: &DateTime) -> Result<Owned> {
    let (date, time) = (value.date(), value.time());
    // SAFETY: the caller holds the lock. Date and time are valid, and `zone` is an owned reference.
    unsafe {
        import()?;
        let zone = zone(time.zone())?;
        let types = &*ffi::PyDateTimeAPI();
        Owned::returned((types.DateTime_FromDateAndTimeAndFold)(
            date.year(),
            date.month() as c_int,
            date.day() as c_int,
            time.hour() as c_int,
            time.minute() as c_int,
            time.second() as c_int,
            time.microsecond() as c_int,
            zone.as_ptr(),
            time.is_folded().into(),
            types.DateTimeType,
        ))
    }
}

/// # Safety
/// As above.
pub(super) unsafe fn time_delta(delta: &TimeDelta) -> Result<Owned> {
    // SAFETY: the caller holds the lock.
    unsafe {
        import()?;
        Owned::returned(ffi::PyDelta_FromDSU(delta.days(), delta.seconds(), delta.microseconds()))
    }
}

unsafe fn zone(zone: Option<&Zone>) -> Result<Owned> {
    // SAFETY: the caller holds the lock and has imported `datetime`.
    unsafe {
        match zone {
            None => Ok(Owned::new_reference(ffi::Py_None())),
            Some(Zone::Offset(offset)) if *offset == TimeDelta::default() => {
                Ok(Owned::new_reference(ffi::PyDateTime_TimeZone_UTC()))
            }
            Some(Zone::Offset(offset)) => {
                let offset = time_delta(offset)?;
                Owned::returned(ffi::PyTimeZone_FromOffset(offset.as_ptr()))
            }
            Some(Zone::Named { key, .. }) => {
                let module = Owned::returned(ffi::PyImport_ImportModule(c"zoneinfo".as_ptr()))?;
                let class = Owned::returned(ffi::PyObject_GetAttrString(module.as_ptr(), c"ZoneInfo".as_ptr()))?;
                let length = key.len() as ffi::Py_ssize_t;
                let key = Owned::returned(ffi::PyUnicode_FromStringAndSize(key.as_ptr().cast(), length))?;
                Owned::returned(ffi::PyObject_CallOneArg(class.as_ptr(), key.as_ptr()))
            }
        }
    }
}
