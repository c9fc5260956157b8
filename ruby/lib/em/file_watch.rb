# frozen_string_literal: true

module EventMachine
  # Watches a file.
  class FileWatch < Connection
    attr_reader :path

    def receive_data(data)
      case data
      when 'modified' then file_modified
      when 'deleted' then file_deleted
      when 'moved' then file_moved
      end
    end

    def file_modified; end

    def file_deleted; end

    def file_moved; end

    def stop_watching
      EventMachine.unwatch_filename(@signature)
    end
  end

  # Calls the handler when a file changes. The handler is a module, or a subclass of FileWatch.
  def self.watch_file(filename, handler = nil, *args, &block)
    on_reactor_thread do
      klass = klass_from_handler(FileWatch, handler, *args)
      signature = watch_filename(filename.to_s)
      watch = klass.allocate
      watch.instance_variable_set(:@path, filename)
      watch.begin_connection(signature, args)
      @conns[signature] = watch
      block&.call(watch)
      watch
    end
  end

  # Reads lines that are typed.
  def self.open_keyboard(handler = nil, *args, &block)
    on_reactor_thread do
      klass = klass_from_handler(Connection, handler, *args)
      signature = read_keyboard
      connection = klass.new(signature, *args)
      @conns[signature] = connection
      block&.call(connection)
      connection
    end
  end
end
