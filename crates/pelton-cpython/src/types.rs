//! Creating Python types at run time.
//!
//! Python keeps pointers to the tables of methods and attributes that a type is created from. Our types are never
//! freed, so the tables are leaked.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, null_mut};

use pyo3::ffi::{self, PyGetSetDef, PyMethodDef, PyTypeObject};

use crate::object::{Owned, Result, check};

/// A function or table of a type, by slot number.
pub type Slot = (c_int, *mut c_void);

/// Creates a type that only this crate instantiates.
///
/// # Safety
/// `base` is a type, or null for `object`. `size` has room for its fields and for those that the functions in
/// `slots` access.
pub unsafe fn make(
    name: &'static CStr,
    base: *mut PyTypeObject,
    size: usize,
    slots: &[Slot],
) -> Result<*mut PyTypeObject> {
    let flags = ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION;
    // SAFETY: the caller guarantees that base, size and slots fit each other.
    unsafe { from_spec(name, base, size, flags, slots) }
}

/// Creates a type with one field after those of `base`: a reference, at the returned offset.
///
/// To CPython the field is a slot like those of a class with `__slots__`. CPython visits, clears and releases it
/// together with the rest of the object, which has a dictionary, weak references and possibly `__del__`. There is
/// no descriptor through which Python code could access it.
///
/// # Safety
/// `base` is a class made in Python, and the functions in `slots` are suitable for a type derived from it.
pub unsafe fn make_with_hidden_field(
    name: &'static CStr,
    base: *mut PyTypeObject,
    slots: &[Slot],
) -> Result<(*mut PyTypeObject, usize)> {
    let hidden = c"_hidden";
    // SAFETY: the caller guarantees that base and slots fit. Setting an attribute to null deletes it.
    unsafe {
        let (its_type, offset) = make_with_field(name, base, hidden, slots)?;
        check(ffi::PyObject_SetAttrString(its_type.cast(), hidden.as_ptr(), null_mut()))?;
        Ok((its_type, offset))
    }
}

/// Creates a type with one field after those of `base`: a reference or null, which Python code sees as the
/// attribute `field`.
///
/// # Safety
/// As for [`make_with_hidden_field`].
pub unsafe fn make_with_field(
    name: &'static CStr,
    base: *mut PyTypeObject,
    field: &'static CStr,
    slots: &[Slot],
) -> Result<(*mut PyTypeObject, usize)> {
    // SAFETY: the caller guarantees that it is a type; types have their size set.
    let offset = unsafe { (*base).tp_basicsize };
    let mut members = [
        ffi::PyMemberDef { name: field.as_ptr(), type_code: ffi::Py_T_OBJECT_EX, offset, flags: 0, doc: ptr::null() },
        ffi::PyMemberDef { name: ptr::null(), type_code: 0, offset: 0, flags: 0, doc: ptr::null() },
    ];
    let mut slots = slots.to_vec();
    slots.push((ffi::Py_tp_members, members.as_mut_ptr().cast()));
    let size = offset as usize + size_of::<*mut c_void>();
    // SAFETY: the caller guarantees that base and slots fit. Python copies the members.
    unsafe {
        let its_type = from_spec(name, base, size, ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE, &slots)?;
        Ok((its_type, offset as usize))
    }
}

unsafe fn from_spec(
    name: &'static CStr,
    base: *mut PyTypeObject,
    size: usize,
    flags: std::ffi::c_ulong,
    slots: &[Slot],
) -> Result<*mut PyTypeObject> {
    let mut slots: Vec<ffi::PyType_Slot> =
        slots.iter().map(|&(slot, pfunc)| ffi::PyType_Slot { slot, pfunc }).collect();
    slots.push(ffi::PyType_Slot { slot: 0, pfunc: null_mut() });
    let mut spec = ffi::PyType_Spec {
        name: name.as_ptr(),
        basicsize: size as c_int,
        itemsize: 0,
        flags: flags as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the caller guarantees that base, size and slots fit. Python copies the spec and what it points to,
    // except for tables, which are leaked.
    unsafe { Ok(Owned::returned(ffi::PyType_FromSpecWithBases(&mut spec, base.cast()))?.into_ptr().cast()) }
}

/// Creates a table of methods, and leaks it.
pub fn methods(mut methods: Vec<PyMethodDef>) -> *mut c_void {
    methods.push(PyMethodDef::zeroed());
    methods.leak().as_mut_ptr().cast()
}

/// Creates a table of attributes, and leaks it.
pub fn attributes(mut attributes: Vec<PyGetSetDef>) -> *mut c_void {
    attributes.push(PyGetSetDef { name: ptr::null(), get: None, set: None, doc: ptr::null(), closure: null_mut() });
    attributes.leak().as_mut_ptr().cast()
}

/// A method without arguments.
pub fn without_arguments(name: &'static CStr, function: ffi::PyCFunction, doc: &'static CStr) -> PyMethodDef {
    let ml_meth = ffi::PyMethodDefPointer { PyCFunction: function };
    PyMethodDef { ml_name: name.as_ptr(), ml_meth, ml_flags: ffi::METH_NOARGS, ml_doc: doc.as_ptr() }
}

/// A method with one argument.
pub fn with_one(name: &'static CStr, function: ffi::PyCFunction, doc: &'static CStr) -> PyMethodDef {
    PyMethodDef { ml_flags: ffi::METH_O, ..without_arguments(name, function, doc) }
}

/// A method with positional arguments.
pub fn fast(name: &'static CStr, function: ffi::PyCFunctionFast, doc: &'static CStr) -> PyMethodDef {
    let ml_meth = ffi::PyMethodDefPointer { PyCFunctionFast: function };
    PyMethodDef { ml_name: name.as_ptr(), ml_meth, ml_flags: ffi::METH_FASTCALL, ml_doc: doc.as_ptr() }
}

/// A method with positional and keyword arguments.
pub fn fast_with_keywords(
    name: &'static CStr,
    function: ffi::PyCFunctionFastWithKeywords,
    doc: &'static CStr,
) -> PyMethodDef {
    let ml_meth = ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: function };
    let ml_flags = ffi::METH_FASTCALL | ffi::METH_KEYWORDS;
    PyMethodDef { ml_name: name.as_ptr(), ml_meth, ml_flags, ml_doc: doc.as_ptr() }
}

/// An attribute that can be read and, if `set` is given, written.
pub fn attribute(name: &'static CStr, get: ffi::getter, set: Option<ffi::setter>) -> PyGetSetDef {
    PyGetSetDef { name: name.as_ptr(), get: Some(get), set, doc: ptr::null(), closure: null_mut() }
}

/// Returns whether a class is written in C, so that Python code cannot have changed it.
pub fn is_written_in_c(class: &pyo3::Bound<'_, pyo3::types::PyType>) -> bool {
    use pyo3::types::PyTypeMethods;
    let flags = ffi::Py_TPFLAGS_HEAPTYPE | ffi::Py_TPFLAGS_IMMUTABLETYPE;
    // SAFETY: it is a type.
    let its = unsafe { ffi::PyType_GetFlags(class.as_type_ptr()) };
    its & flags != ffi::Py_TPFLAGS_HEAPTYPE
}

/// Returns the name of a class as CPython has it: with the module for classes written in C, without it for others.
pub fn internal_name(class: &pyo3::Bound<'_, pyo3::types::PyType>) -> String {
    use pyo3::types::PyTypeMethods;
    // SAFETY: it is a type, whose name is a C string.
    unsafe { CStr::from_ptr((*class.as_type_ptr()).tp_name) }.to_string_lossy().into_owned()
}
