//! Groups of operations that a test engine lacks.

/// Implements a group of operations for a test engine that lacks it: every operation fails with `Unsupported`.
///
/// The groups are `watches` (`WatchEngine`), `listening` (`ListenEngine`), `streams` (`StreamEngine`) and `datagrams`
/// (`DatagramEngine`):
///
/// ```ignore
/// unsupported!(datagrams for MyEngine);
/// ```
#[macro_export]
macro_rules! unsupported {
    (watches for $engine:ty) => {
        impl $crate::pelton_os::engine::WatchEngine for $engine {
            $crate::unsupported!(@fail {
                watch($crate::pelton_os::Token, std::os::fd::BorrowedFd<'_>, $crate::pelton_os::Interest, $crate::pelton_os::Mode) -> ();
                rewatch($crate::pelton_os::Token, $crate::pelton_os::Interest, $crate::pelton_os::Mode) -> ();
            });
        }
    };
    (listening for $engine:ty) => {
        impl $crate::pelton_os::engine::ListenEngine for $engine {
            $crate::unsupported!(@fail {
                listen($crate::pelton_os::Token, &$crate::pelton_os::Address, &$crate::pelton_os::ListenOptions) -> ();
                adopt_listener($crate::pelton_os::Token, $crate::pelton_os::Socket) -> ();
                accept($crate::pelton_os::Token, $crate::pelton_os::Intake) -> ();
                accept_manually($crate::pelton_os::Token) -> ();
                accept_one($crate::pelton_os::Token) -> $crate::pelton_os::Accepted;
            });

            fn accept_again(&mut self) {}

            fn turn_away(&mut self, _: $crate::pelton_os::Token) {}
        }
    };
    (streams for $engine:ty) => {
        impl $crate::pelton_os::engine::StreamEngine for $engine {
            $crate::unsupported!(@fail {
                connect($crate::pelton_os::Token, &$crate::pelton_os::Address, &$crate::pelton_os::ConnectOptions) -> ();
                adopt($crate::pelton_os::Token, $crate::pelton_os::Socket) -> $crate::pelton_os::StreamKind;
                receive($crate::pelton_os::Token, $crate::pelton_os::Intake) -> ();
                receive_manually($crate::pelton_os::Token) -> ();
                receive_into($crate::pelton_os::Token, &mut [$crate::pelton_os::Space<'_>]) -> usize;
                send_now($crate::pelton_os::Token, &[std::io::IoSlice<'_>]) -> usize;
                report_room($crate::pelton_os::Token, bool) -> ();
                send($crate::pelton_os::Token, &mut $crate::pelton_os::Outbox) -> $crate::pelton_os::Sending;
                finish($crate::pelton_os::Token) -> ();
                detach($crate::pelton_os::Token) -> ();
            });

            fn reset_when_forgotten(&mut self, _: $crate::pelton_os::Token) {}

            fn splice(
                &mut self,
                _: $crate::pelton_os::Token,
                _: Option<($crate::pelton_os::Token, std::rc::Rc<$crate::pelton_os::Splice>)>,
            ) -> bool {
                false
            }

            fn has_unread(&self, _: $crate::pelton_os::Token) -> bool {
                false
            }

            fn undelivered(&self, _: $crate::pelton_os::Token) -> Option<u64> {
                None
            }
        }
    };
    (datagrams for $engine:ty) => {
        impl $crate::pelton_os::engine::DatagramEngine for $engine {
            $crate::unsupported!(@fail {
                bind_datagrams($crate::pelton_os::Token, &$crate::pelton_os::Address, &$crate::pelton_os::DatagramOptions) -> ();
                connect_datagrams($crate::pelton_os::Token, &$crate::pelton_os::Address, &$crate::pelton_os::DatagramOptions) -> ();
                adopt_datagrams($crate::pelton_os::Token, $crate::pelton_os::Socket) -> ();
                receive_datagrams($crate::pelton_os::Token, $crate::pelton_os::Intake) -> ();
                receive_datagrams_manually($crate::pelton_os::Token) -> ();
                receive_datagram_into($crate::pelton_os::Token, &mut $crate::pelton_os::Space<'_>) -> (usize, Option<$crate::pelton_os::Address>);
                send_datagram_now($crate::pelton_os::Token, Option<&$crate::pelton_os::Address>, &[u8]) -> ();
                send_datagrams($crate::pelton_os::Token, &mut $crate::pelton_os::DatagramOutbox) -> $crate::pelton_os::Sending;
                set_datagrams($crate::pelton_os::Token, $crate::pelton_os::DatagramSetting) -> ();
            });
        }
    };
    (manual streams) => {
        $crate::unsupported!(@fail {
            receive_manually($crate::pelton_os::Token) -> ();
            receive_into($crate::pelton_os::Token, &mut [$crate::pelton_os::Space<'_>]) -> usize;
            send_now($crate::pelton_os::Token, &[std::io::IoSlice<'_>]) -> usize;
            report_room($crate::pelton_os::Token, bool) -> ();
        });
    };
    (manual listening) => {
        $crate::unsupported!(@fail {
            accept_manually($crate::pelton_os::Token) -> ();
            accept_one($crate::pelton_os::Token) -> $crate::pelton_os::Accepted;
        });
    };
    (manual datagrams) => {
        $crate::unsupported!(@fail {
            receive_datagrams_manually($crate::pelton_os::Token) -> ();
            receive_datagram_into($crate::pelton_os::Token, &mut $crate::pelton_os::Space<'_>) -> (usize, Option<$crate::pelton_os::Address>);
            send_datagram_now($crate::pelton_os::Token, Option<&$crate::pelton_os::Address>, &[u8]) -> ();
        });
    };
    (@fail { $($method:ident($($argument:ty),*) -> $result:ty;)* }) => {
        $(fn $method(&mut self, $(_: $argument),*) -> std::io::Result<$result> {
            Err(std::io::ErrorKind::Unsupported.into())
        })*
    };
}
