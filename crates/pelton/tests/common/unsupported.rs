//! For test engines that lack a group of operations: implements the group so that every operation fails with `Unsupported`.

/// Implements `WatchEngine` (`watches`), `ListenEngine` (`listening`), `StreamEngine` (`streams`) or `DatagramEngine` (`datagrams`)
/// for an engine without that group.
macro_rules! unsupported {
    (watches for $engine:ty) => {
        impl pelton_os::engine::WatchEngine for $engine {
            unsupported!(@fail {
                watch(pelton_os::Token, std::os::fd::BorrowedFd<'_>, pelton_os::Interest, pelton_os::Mode) -> ();
                rewatch(pelton_os::Token, pelton_os::Interest, pelton_os::Mode) -> ();
            });
        }
    };
    (listening for $engine:ty) => {
        impl pelton_os::engine::ListenEngine for $engine {
            unsupported!(@fail {
                listen(pelton_os::Token, &pelton_os::Address, &pelton_os::ListenOptions) -> ();
                adopt_listener(pelton_os::Token, pelton_os::Socket) -> ();
                accept(pelton_os::Token, pelton_os::Intake) -> ();
            });

            fn accept_again(&mut self) {}

            fn turn_away(&mut self, _: pelton_os::Token) {}
        }
    };
    (streams for $engine:ty) => {
        impl pelton_os::engine::StreamEngine for $engine {
            unsupported!(@fail {
                connect(pelton_os::Token, &pelton_os::Address, &pelton_os::ConnectOptions) -> ();
                adopt(pelton_os::Token, pelton_os::Socket) -> ();
                receive(pelton_os::Token, pelton_os::Intake) -> ();
                send(pelton_os::Token, &mut pelton_os::Outbox) -> pelton_os::Sending;
                finish(pelton_os::Token) -> ();
                detach(pelton_os::Token) -> ();
            });

            fn has_unread(&self, _: pelton_os::Token) -> bool {
                false
            }

            fn undelivered(&self, _: pelton_os::Token) -> Option<u64> {
                None
            }
        }
    };
    (datagrams for $engine:ty) => {
        impl pelton_os::engine::DatagramEngine for $engine {
            unsupported!(@fail {
                bind_datagrams(pelton_os::Token, &pelton_os::Address, &pelton_os::DatagramOptions) -> ();
                connect_datagrams(pelton_os::Token, &pelton_os::Address, &pelton_os::DatagramOptions) -> ();
                adopt_datagrams(pelton_os::Token, pelton_os::Socket) -> ();
                receive_datagrams(pelton_os::Token, pelton_os::Intake) -> ();
                send_datagrams(pelton_os::Token, &mut pelton_os::DatagramOutbox) -> pelton_os::Sending;
                set_datagrams(pelton_os::Token, pelton_os::DatagramSetting) -> ();
            });
        }
    };
    (@fail { $($method:ident($($argument:ty),*) -> $result:ty;)* }) => {
        $(fn $method(&mut self, $(_: $argument),*) -> std::io::Result<$result> {
            Err(std::io::ErrorKind::Unsupported.into())
        })*
    };
}

pub(crate) use unsupported;
