//! Dates and times, to Python and from it.

use std::ffi::c_int;

use pyo3::ffi::{self, PyObject};

use super::error::lossy_text;
use super::{ConversionError, Date, DateTime, Time, TimeDelta, Value, Zone};
use crate::object::{Owned, Raised, Result};

/// Makes sure that Python's types are known.
///
/// # Safety
/// The interpreter lock is held.
#[inline]
unsafe fn import() -> Result<()> {
    // SAFETY: the lock is held. What imports them leaves an exception if it cannot.
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

/// What a date, a time or a span of time is; nothing if it is neither.
///
/// # Safety
/// `object` is alive, and the interpreter lock is held.
pub(super) unsafe fn from_python(object: *mut PyObject) -> std::result::Result<Option<Value>, ConversionError> {
    // SAFETY: as the caller says; each is only asked what its type has.
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
    // SAFETY: it is a date.
    unsafe {
        let (month, day) = (ffi::PyDateTime_GET_MONTH(object) as u32, ffi::PyDateTime_GET_DAY(object) as u32);
        Date::new(ffi::PyDateTime_GET_YEAR(object), month, day)
    }
}

unsafe fn delta_of(object: *mut PyObject) -> std::result::Result<TimeDelta, ConversionError> {
    // SAFETY: it is a span of time.
    unsafe {
        let seconds = ffi::PyDateTime_DELTA_GET_SECONDS(object);
        let microseconds = ffi::PyDateTime_DELTA_GET_MICROSECONDS(object);
        TimeDelta::new(ffi::PyDateTime_DELTA_GET_DAYS(object).into(), seconds.into(), microseconds.into())
    }
}

/// Adds what else belongs to a time: which of two it is, and its zone.
///
/// # Safety
/// `object` is a date and time or a time, and `zone` its `tzinfo`; the interpreter lock is held.
unsafe fn finish(
    time: Time,
    fold: bool,
    object: *mut PyObject,
    zone: *mut PyObject,
) -> std::result::Result<Time, ConversionError> {
    // SAFETY: as the caller says. A zone may be written in Python and do anything, but the object keeps it alive, and the
    // caller the object.
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
            // To Python it is as good as without a zone.
            (None, None) => Ok(time),
        }
    }
}

/// Whether it is one of the time zone database.
unsafe fn is_named(zone: *mut PyObject) -> Result<bool> {
    // SAFETY: the lock is held; nobody can have a `ZoneInfo` who has not imported its module.
    unsafe {
        let modules = ffi::PyImport_GetModuleDict();
        let module = ffi::PyDict_GetItemString(modules, c"zoneinfo".as_ptr());
        if module.is_null() {
            return Ok(false);
        }
        let class = Owned::returned(ffi::PyObject_GetAttrString(module, c"ZoneInfo".as_ptr()))?;
        match ffi::PyObject_IsInstance(zone, class.as_ptr()) {
            -1 => Err(Raised),
            is => Ok(is != 0),
        }
    }
}

/// The name of a zone, if it has one: those that are read from a file need not.
unsafe fn key_of(zone: *mut PyObject) -> Option<String> {
    // SAFETY: the lock is held, and the zone is alive.
    unsafe {
        let Some(key) = Owned::taken(ffi::PyObject_GetAttrString(zone, c"key".as_ptr())) else {
            ffi::PyErr_Clear();
            return None;
        };
        if ffi::PyUnicode_Check(key.as_ptr()) == 0 { None } else { lossy_text(key.into_ptr()) }
    }
}

/// # Safety
/// The interpreter lock is held, as for all that follow.
pub(super) unsafe fn date(date: &Date) -> Result<Owned> {
    // SAFETY: the lock is held; whether there is such a day was looked at when it was made.
    unsafe {
        import()?;
        Owned::returned(ffi::PyDate_FromDate(date.year(), date.month() as c_int, date.day() as c_int))
    }
}

/// # Safety
/// As above.
pub(super) unsafe fn time(time: &Time) -> Result<Owned> {
    // SAFETY: as above.
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
    // SAFETY: as above.
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
    // SAFETY: as above.
    unsafe {
        import()?;
        Owned::returned(ffi::PyDelta_FromDSU(delta.days(), delta.seconds(), delta.microseconds()))
    }
}

unsafe fn zone(zone: Option<&Zone>) -> Result<Owned> {
    // SAFETY: as above, and the types are imported.
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
