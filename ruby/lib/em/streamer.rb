# frozen_string_literal: true

module EventMachine
  # The largest file that `send_file_data` sends.
  LARGEST_FILE_SENT_AT_ONCE = 32 * 1024
  private_constant :LARGEST_FILE_SENT_AT_ONCE

  # Sends a small file at once.
  def self.send_file_data(signature, filename)
    size = File.size(filename)
    if size > LARGEST_FILE_SENT_AT_ONCE
      raise "File too large: send_file_data sends up to #{LARGEST_FILE_SENT_AT_ONCE} bytes, #{filename} has #{size}"
    end

    data = File.binread(filename)
    send_data(signature, data, data.bytesize)
  rescue SystemCallError => e
    raise IOError, "#{filename}: #{e.message}"
  end

  # Sends a file of any size on a connection, in pieces, as fast as the peer reads. Small ones are sent at once.
  class FileStreamer
    include Deferrable

    # Files up to this size are sent at once.
    MappingThreshold = 16_384
    # While more bytes than this are queued, no more are read.
    BackpressureLevel = 50_000
    ChunkSize = 16_384

    # With `http_chunks: true`, each piece is sent as a chunk of HTTP.
    def initialize(connection, filename, args = {})
      @connection = connection
      @http_chunks = args[:http_chunks]
      return fail('file not found') unless File.exist?(filename)

      @file = File.open(filename, 'rb')
      @size = @file.size
      @position = 0
      @size <= MappingThreshold ? stream_without_mapping : stream_one_chunk
    end

    # Sends as much as may be queued now, and continues in the next pass.
    def stream_one_chunk
      loop do
        return finish if @position >= @size

        if @connection.get_outbound_data_size > BackpressureLevel
          return EventMachine.next_tick { stream_one_chunk } unless @connection.error? == true

          return abandon
        end
        send_piece(@file.read([@size - @position, ChunkSize].min))
      end
    end

    private

    def stream_without_mapping
      send_piece(@file.read(@size)) if @size.positive?
      finish
    end

    def send_piece(piece)
      return @size = @position unless piece

      @position += piece.bytesize
      @connection.send_data("#{piece.bytesize.to_s(16)}\r\n") if @http_chunks
      @connection.send_data(piece)
      @connection.send_data("\r\n") if @http_chunks
    end

    def finish
      @file.close
      @connection.send_data("0\r\n\r\n") if @http_chunks
      succeed
    end

    def abandon
      @file.close
      fail
    end
  end
end
