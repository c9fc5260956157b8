# frozen_string_literal: true

module EventMachine
  class << self
    # Calls back when an io is ready. The program reads, writes and closes it.
    ruby2_keywords def watch(io, handler = nil, *args, &block)
      attach_io(io, true, handler, *args, &block)
    end

    # Makes a connection of an io. It is closed with the connection.
    ruby2_keywords def attach(io, handler = nil, *args, &block)
      attach_io(io, false, handler, *args, &block)
    end

    ruby2_keywords def attach_io(io, watch_mode, handler = nil, *args, &block)
      on_reactor_thread do
        klass = klass_from_handler(Connection, handler, *args)
        if !watch_mode && %i[notify_readable notify_writable].any? { |name| klass.public_method_defined?(name) }
          raise ArgumentError, 'notify_readable and notify_writable are for EM.watch; EM.attach reads and writes by itself'
        end

        signature = attach_fd(io.respond_to?(:fileno) ? io.fileno : io, watch_mode)
        connection = klass.allocate
        connection.attached_io = io unless watch_mode
        connection.instance_variable_set(:@io, io)
        connection.begin_connection(signature, args)
        @conns[signature] = connection
        block&.call(connection)
        connection
      end
    end
  end
end
